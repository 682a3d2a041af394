package embedetcd

import (
	"context"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
)

// etcd exits when the disk is full, because it must write to answer. While there is still space
// for its internal writes, this file raises its NOSPACE alarm: etcd then refuses new values with
// a clear error, and still renews leases, deletes and reads. Etcd raises the same alarm when its
// database reaches the quota. It never clears the alarm, not even after a restart with an empty
// disk, so this file does.
const (
	// reserve is the space that must be left: etcd's log grows by 64 MB at once, and
	// its database by as much as is written.
	reserve = 96 << 20
	// checkInterval is the time between two checks of the space.
	checkInterval = 5 * time.Second
	// compactLimit bounds one compaction.
	compactLimit = 30 * time.Second
)

// space keeps an etcd from filling the disk, and clears its NOSPACE alarm when there is space.
type space struct {
	server    *etcdserver.EtcdServer
	dir       string
	quota     int64
	log       logrus.FieldLogger
	diskSpace func(dir string) (free, all uint64, err error)
	every     time.Duration
	reported  int64 // revision at which the log last reported that the quota is used up
}

// run checks the space until ctx ends.
func (s *space) run(ctx context.Context) {
	s.check(ctx)
	sleep.Every(ctx, s.every, func(time.Time) { s.check(ctx) })
}

// check raises the alarm if less space is left than the reserve, and clears it when there is a
// quarter more than the reserve and the database is smaller than its quota.
func (s *space) check(ctx context.Context) {
	free, all, err := s.diskSpace(s.dir)
	if err != nil {
		return // unknown; etcd reports it when a write fails
	}
	need := min(uint64(reserve), all/10)
	isShort := func(a *pb.AlarmMember) bool { return a.GetAlarm() == pb.AlarmType_NOSPACE }
	switch alarmed := slices.ContainsFunc(s.server.Alarms(), isShort); {
	case !alarmed && free < need:
		if s.alarm(ctx, pb.AlarmRequest_ACTIVATE) {
			s.log.Errorf("only %d MiB are left for %s: etcd accepts no new keys, and no instance can register, until there is more space", free>>20, s.dir)
		}
	case alarmed && free >= need+need/4 && s.shrink(ctx, free-need):
		if s.alarm(ctx, pb.AlarmRequest_DEACTIVATE) {
			s.log.Warnf("%d MiB are left for %s: history compacted, NOSPACE alarm of etcd ended, it accepts writes again", free>>20, s.dir)
		}
	}
}

// shrink makes the database smaller, and reports whether it is well below its quota. It
// discards the history, and defragments if that returns a tenth of the database; defragmenting
// writes a copy, for which there must be space.
func (s *space) shrink(ctx context.Context, free uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, compactLimit)
	defer cancel()
	revision := s.server.KV().Rev()
	// An error means that this revision is compacted already, or the next check retries.
	_, _ = s.server.Compact(ctx, &pb.CompactionRequest{Revision: revision, Physical: true})
	db := s.server.Backend()
	if used := db.SizeInUse(); used < db.Size()*9/10 && uint64(used) < free {
		if err := db.Defrag(); err != nil {
			s.log.WithError(err).Error("defragment etcd")
		}
	}
	if db.Size() < s.quota*9/10 {
		return true
	}
	switch {
	case s.reported == revision:
	case db.SizeInUse() < db.Size()*9/10:
		s.log.Errorf("the database of etcd has reached its quota of %d MiB and cannot be defragmented: it accepts no new keys until there is more disk space", s.quota>>20)
	default:
		s.log.Errorf("the keys in etcd fill its quota of %d MiB: it accepts no new keys until some are deleted", s.quota>>20)
	}
	s.reported = revision
	return false
}

func (s *space) alarm(ctx context.Context, action pb.AlarmRequest_AlarmAction) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := s.server.Alarm(ctx, &pb.AlarmRequest{
		Action: action, MemberID: uint64(s.server.MemberID()), Alarm: pb.AlarmType_NOSPACE,
	})
	return err == nil
}
