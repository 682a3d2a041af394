package embedetcd

import (
	"context"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
)

// A full disk ends an etcd: it must write to answer. Before that, while there is
// still room for what it does by itself, it is told to take no new values: it has
// an alarm for that, which says so to whoever writes, and leaves leases, deletions
// and reads alone.
const (
	// reserve is how much room must be left: etcd's log grows by 64 MB at once, and
	// its database by as much as is written.
	reserve = 96 << 20
	// lookEvery is how often is looked.
	lookEvery = 5 * time.Second
)

// space keeps an etcd from filling the disk.
type space struct {
	server *etcdserver.EtcdServer
	dir    string
	log    logrus.FieldLogger
	room   func(dir string) (free, all uint64, err error)
	every  time.Duration
	short  bool
}

// run looks until ctx ends.
func (s *space) run(ctx context.Context) {
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	s.lift(ctx) // of an earlier life
	for {
		s.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look compares the room that is left with the reserve.
func (s *space) look(ctx context.Context) {
	free, all, err := s.room(s.dir)
	if err != nil {
		return // it cannot be known; etcd says when a write fails
	}
	need := min(uint64(reserve), all/10)
	switch {
	case !s.short && free < need:
		if s.alarm(ctx, pb.AlarmRequest_ACTIVATE) {
			s.short = true
			s.log.Errorf("only %d MiB are left for %s: etcd takes nothing new, so nobody can register, until there is more room", free>>20, s.dir)
		}
	case s.short && free >= need+need/4:
		s.lift(ctx)
	}
}

// lift ends the alarm unless etcd has a reason of its own: its quota.
func (s *space) lift(ctx context.Context) {
	free, all, err := s.room(s.dir)
	if err != nil || free < min(uint64(reserve), all/10) || s.server.Backend().Size() >= quotaBytes*9/10 {
		return
	}
	isShort := func(a *pb.AlarmMember) bool { return a.GetAlarm() == pb.AlarmType_NOSPACE }
	if slices.ContainsFunc(s.server.Alarms(), isShort) && s.alarm(ctx, pb.AlarmRequest_DEACTIVATE) {
		s.short = false
		s.log.Warnf("%d MiB are left for %s: etcd takes everything again", free>>20, s.dir)
	}
}

func (s *space) alarm(ctx context.Context, action pb.AlarmRequest_AlarmAction) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := s.server.Alarm(ctx, &pb.AlarmRequest{
		Action: action, MemberID: uint64(s.server.MemberID()), Alarm: pb.AlarmType_NOSPACE,
	})
	return err == nil
}
