//go:build !purego

package strscan

import "golang.org/x/sys/cpu"

// piece bounds one call of the assembly, which the scheduler cannot interrupt:
// a megabyte takes it a tenth of a millisecond.
const piece = 1 << 20

// blocks passes text at the start of b in blocks of 64 bytes. It stops between
// two characters, at the latest where text ends, and no more than a block and an
// escape before that or the end of b. high is as that of words.
func blocks(b []byte) (n int, high uint64) {
	if !cpu.X86.HasAVX2 {
		return 0, 0
	}
	for len(b)-n >= 64 {
		p := b[n:min(len(b), n+piece)]
		done, h := blocksAVX2(&p[0], len(p))
		n += done
		high |= h
		if done < piece-64 {
			break
		}
	}
	return n, high
}

// blocksAVX2 looks at the whole blocks of 64 bytes among the n bytes at p, and
// at nothing else. n must be at least 64. done is the length of the text that it
// has passed; high has all high bits set if a byte of it is above 0x7f.
//
//go:noescape
func blocksAVX2(p *byte, n int) (done int, high uint64)
