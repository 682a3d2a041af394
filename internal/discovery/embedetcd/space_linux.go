package embedetcd

import "golang.org/x/sys/unix"

// diskSpace returns the disk space that is left for this user, and the size of the disk.
func diskSpace(dir string) (free, all uint64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, 0, err
	}
	block := uint64(fs.Bsize)
	return fs.Bavail * block, fs.Blocks * block, nil
}
