package fleet

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are looked for below the range from which Linux takes the source ports
// of outgoing connections (32768 and up), so that a port that was found free is
// not gone again before its owner has bound it.
const (
	firstPort = 20000
	lastPort  = 32000
)

// ErrNoPort means that every port tried was taken.
var ErrNoPort = errors.New("no free port found")

// FreePorts finds n different free TCP ports on 127.0.0.1. They are free at
// that moment; nothing holds them.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range 200 + 20*n {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		// Held until all are found, so that none comes twice.
		defer l.Close()
		ports = append(ports, port)
	}
	if len(ports) == n {
		return ports, nil
	}
	return nil, ErrNoPort
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
