package fakevllm

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/zmq"
	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
)

// pingInterval is that of vLLM's MoRI-IO engines.
const pingInterval = 3 * time.Second

// ping tells a proxy of the engine for as long as this life lasts.
func (l *life) ping(to *zmq.Sender) {
	defer to.Close()
	tick := time.NewTicker(l.server.opt.PingInterval)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for index := int64(1); ; index++ {
		if !l.server.mute.Load() {
			_ = to.Send(ctx, l.server.pingMessage(l, index)) // nobody may be there; the next one says it again
		}
		select {
		case <-l.done:
			return
		case <-tick.C:
		}
	}
}

// Mute stops the pings, and starts them again.
func (s *Server) Mute(mute bool) { s.mute.Store(mute) }

// ZMQAddress is what a MoRI-IO engine says of itself.
func (s *Server) ZMQAddress() string { return s.zmqAddress(s.current()) }

func (s *Server) zmqAddress(l *life) string {
	host, port := l.advertised(l.cores[0])
	return fmt.Sprintf("host:%s,handshake:%d,notify:%d", host, port, port)
}

// pingMessage is the registration of vLLM 0.20 and later, or of those before.
func (s *Server) pingMessage(l *life, index int64) []byte {
	role := "D"
	if s.opt.Role == RolePrefill {
		role = "P"
	}
	mode := "WRITE"
	if s.opt.Mode == MoRIIORead {
		mode = "READ"
	}
	texts := [][2]string{{"type", role}, {"http_address", s.Address()}, {"zmq_address", s.zmqAddress(l)}, {"transfer_mode", mode}}
	numbers := map[string]int64{"dp_size": 1, "tp_size": int64(s.opt.TPSize)}
	if s.opt.PingOld {
		_, port := l.advertised(l.cores[0])
		texts = [][2]string{{"type", "register"}, {"role", role}, {"request_address", s.URL() + "/v1/completions"}, {"transfer_mode", mode}}
		numbers["handshake_port"], numbers["notify_port"], numbers["index"] = int64(port), int64(port), index
	}
	b := msgp.AppendMapHeader(nil, uint32(len(texts)+len(numbers))) //nolint:gosec // a handful
	for _, m := range texts {
		b = msgp.AppendString(msgp.AppendString(b, m[0]), m[1])
	}
	for name, n := range numbers {
		b = msgp.AppendInt64(msgp.AppendString(b, name), n)
	}
	return b
}

// startMoRIIOChannels brings up the port that partners find the engine by.
func (s *Server) startMoRIIOChannels(ctx context.Context, l *life) (err error) {
	l.transfers = handover.NewTransfers(s.opt.TransferTimeout, l.done, func(id string) {
		s.violation("%s engine: transfer_id %q: a decode has had it", s.opt.Role, id)
		l.count.reused.Add(1)
	})
	s.mu.Lock()
	addr := s.side
	s.mu.Unlock()
	if addr == "" {
		addr = s.opt.SideChannelAddr
	}
	if l.side, err = handover.StartSide(ctx, addr, l.answerMoRIIO); err != nil {
		return err
	}
	s.mu.Lock()
	if host, port, splitErr := net.SplitHostPort(addr); splitErr == nil && port == "0" { // it is configured: the same in every life
		addr = net.JoinHostPort(host, strconv.Itoa(l.side.Port()))
	}
	s.side = addr
	s.mu.Unlock()
	return nil
}

// startPings begins the pings of a life that serves.
func (s *Server) startPings(l *life) error {
	if s.opt.PingTo == "" || !strings.HasPrefix(string(s.opt.Mode), "moriio") {
		return nil
	}
	to, err := zmq.NewSender(zmq.Dealer, s.opt.PingTo)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	l.fetches.Go(func() { l.ping(to) })
	return nil
}
