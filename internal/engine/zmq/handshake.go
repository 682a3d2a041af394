package zmq

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
)

// peers returns the kinds of sockets that may be connected to one of kind k.
func (k Kind) peers() []string {
	return map[Kind][]string{
		Router: {"DEALER", "REQ", "ROUTER"}, Dealer: {"ROUTER", "REP", "DEALER"},
		Pull: {"PUSH"}, Push: {"PULL"}, Sub: {"PUB", "XPUB"}, Pub: {"SUB", "XSUB"},
	}[k]
}

// handshake exchanges greetings and READY commands with the peer (https://rfc.zeromq.org/spec/23/),
// and checks the kind of its socket.
func (c *Conn) handshake(kind Kind) error {
	var greeting, theirs [64]byte // signature, version, mechanism, zeros
	copy(greeting[:], "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL")
	if _, err := c.conn.Write(greeting[:]); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if _, err := io.ReadFull(c.read, theirs[:]); err != nil {
		return receiveError(err)
	}
	mechanism, _, _ := bytes.Cut(theirs[12:32], []byte{0})
	switch {
	case theirs[0] != greeting[0] || theirs[9] != greeting[9] || theirs[10] < greeting[10]:
		return fmt.Errorf("%w: not a ZMTP 3 greeting", errFrame)
	case string(mechanism) != "NULL":
		return fmt.Errorf("security mechanism %q, not NULL", mechanism)
	}
	ready := fmt.Appendf(nil, "\x05READY\x0bSocket-Type\x00\x00\x00%c%s", len(kind), kind)
	if _, err := c.conn.Write(appendFrame(nil, flagCommand, ready)); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	flags, body, err := c.frame(c.bounds.Bytes)
	if err != nil {
		return err
	}
	name, rest, err := splitCommand(flags, body)
	if err != nil || name != "READY" || flags&flagCommand == 0 {
		return fmt.Errorf("%w: no READY", errFrame)
	}
	peer := ""
	for len(rest) > 0 {
		n := 1 + int(rest[0]) // length of the name, then of the value
		if len(rest) < n+4 || uint64(len(rest)-n-4) < uint64(binary.BigEndian.Uint32(rest[n:])) {
			return fmt.Errorf("%w: a property of READY", errFrame)
		}
		value := rest[n+4:][:binary.BigEndian.Uint32(rest[n:])]
		if strings.EqualFold(string(rest[1:n]), "Socket-Type") {
			peer = string(value)
		}
		rest = rest[n+4+len(value):]
	}
	if !slices.Contains(kind.peers(), peer) {
		return fmt.Errorf("the peer is a %q, which cannot be connected to a %s", peer, kind)
	}
	return nil
}
