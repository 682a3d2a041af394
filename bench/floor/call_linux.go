package floor

import (
	"fmt"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The three calls that requests are made of go to the kernel without a word to
// Go's scheduler, which has nothing else to run. They give a number of bytes or
// events, or an errno as a negative number.

// again says that there is nothing now, or no room.
const again = -int(unix.EAGAIN)

func result(n uintptr, e syscall.Errno) int {
	if e != 0 {
		return -int(e)
	}
	return int(n)
}

// reason is the errno in what a call gave.
func reason(n int) error { return syscall.Errno(-n) }

func read(fd int, p []byte) int {
	n, _, e := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0, 0, 0)
	return result(n, e)
}

func write(fd int, p []byte) int {
	n, _, e := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_NOSIGNAL, 0, 0)
	return result(n, e)
}

func wait(poll int, events []unix.EpollEvent) int {
	const forever = ^uintptr(0)
	n, _, e := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(poll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), forever, 0, 0)
	return result(n, e)
}

// hangUp closes; there is nothing that this could lose.
func hangUp(fd int) { _ = unix.Close(fd) }

// watch registers a descriptor for all that may become of it, once and for good.
func watch(poll, fd int, events uint32) error {
	if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("watch a descriptor: %w", err)
	}
	return nil
}

// anything is what connections are watched for.
const anything = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

const socketFlags = unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC

// noDelay sends what is written at once, as every proxy does it.
func noDelay(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("TCP_NODELAY: %w", err)
	}
	return nil
}

func sockaddr(addr string) (*unix.SockaddrInet4, error) {
	a, err := netip.ParseAddrPort(addr)
	if err != nil || !a.Addr().Is4() {
		return nil, fmt.Errorf("%w: %q: use an IPv4 address and a port, as in 127.0.0.1:8000", ErrOptions, addr)
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}, nil
}

func listen(addr string) (fd int, bound string, err error) {
	sa, err := sockaddr(addr)
	if err != nil {
		return -1, "", err
	}
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|socketFlags, 0); err != nil {
		return -1, "", fmt.Errorf("socket: %w", err)
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err == nil {
		if err = unix.Bind(fd, sa); err == nil {
			err = unix.Listen(fd, 4096)
		}
	}
	if err == nil {
		var got unix.Sockaddr
		if got, err = unix.Getsockname(fd); err == nil {
			if in4, ok := got.(*unix.SockaddrInet4); ok {
				sa = in4
			}
		}
	}
	if err != nil {
		hangUp(fd)
		return -1, "", fmt.Errorf("listen on %s: %w", addr, err)
	}
	return fd, netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)).String(), nil
}

// connect begins a connection; a write to it before it stands says EAGAIN.
func connect(sa *unix.SockaddrInet4) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|socketFlags, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Connect(fd, sa); err != nil && err != unix.EINPROGRESS {
		hangUp(fd)
		return -1, fmt.Errorf("connect: %w", err)
	}
	if err := noDelay(fd); err != nil {
		hangUp(fd)
		return -1, err
	}
	return fd, nil
}
