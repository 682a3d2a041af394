package main

// line is one row of the matrix: what is done to the system and what must come
// of it.
type line struct {
	row                  int
	name                 string // shown instead of the number, for what is no fault
	fault, expected, bar string
}

func (l line) id() string {
	if l.name != "" {
		return l.name
	}
	return itoa(l.row)
}

// matrix lists all rows in the order of the page. Times are the bars for this
// kind of machine.
func matrix() []line {
	return []line{
		{1, "", "agent killed, engine lives", "an orphan that is still served, dropped after the grace while most of its role is registered", "0 failed requests; DELETE within TTL + 1 s"},
		{2, "", "agent and engine killed", "out by the refused connection, the lease follows", "out within 1 s; 0 errors before the first byte"},
		{3, "", "engine hangs (SIGSTOP)", "its agent says down, or the proxy finds it silent; requests that wait on it are served elsewhere", "out within 3 s beside an instance that answers; never while none does; 0 failed requests"},
		{4, "", "graceful stop", "draining, in-flight done, lease revoked", "0 cut streams; DELETE within 50 ms of the revocation"},
		{5, "", "follower of three killed", "the watch moves", "gap of at most 1 s; nothing lost"},
		{6, "", "leader of three killed", "election, leases extended", "gap of at most 4 s; 0 leases lost"},
		{7, "", "member paused, blackholed, half open, one way", "keepalive or audit moves the watch", "15 s by keepalive; 5 s with an audit each 2 s"},
		{8, "", "quorum lost", "last membership served and called stale", "0 failed requests; nodes unchanged"},
		{9, "", "etcd paused past the TTL, resumed", "all leases die, orphans bridge, agents come back", "pool never below full; back within TTL/3 + 1 s"},
		{10, "", "etcd killed, restarted on its data", "same leases, no DELETE", "key versions unchanged; following within 5 s"},
		{11, "", "data wiped, same flags", "new epoch found, agents register anew", "found within audit + 1 s; pool never empty; 0 failed requests"},
		{12, "", "wiped and already past the old revision", "the audit's keys tell", "within 2 audits; pool never empty"},
		{13, "", "compaction while disconnected", "everything is listed and compared", "0 spurious removals"},
		{14, "", "proxy starts while etcd is down", "disk snapshot, probes, serves", "first answer within 2 s; nothing removed comes back"},
		{15, "", "proxy starts, no etcd, no snapshot", "503 in OpenAI's shape, not ready, joins later", "no crash"},
		{16, "", "10,000 registrations", "10 proxy processes equal", "within 2 s of the last acknowledgement"},
		{17, "", "10,000 leases expire at once", "the guard holds, probes decide", "p99 of a pick within 10 % of quiet; nobody lost"},
		{18, "", "bad JSON, 1 MiB, binary, role clash, unknown version", "one entry rejected, or its last good value kept", "others untouched"},
		{19, "", "etcd out of space", "who runs stays, who comes is told why not", "0 failed requests; a clear text"},
		{20, "", "token expired, role revoked, password changed", "last membership, alarm, recovers without a restart", "within 5 s of the mending"},
		{21, "", "two agents for one address", "the second refuses, alarm", "the first's record byte-identical"},
		{22, "", "drain, then the agent registers anew", "still draining", "the override wins"},
		{23, "", "removal of a leased instance", "stays out", "no flap for the override's life"},
		{24, "", "1000 watchers", "one put reaches all", "within 200 ms"},
		{25, "", "clocks an hour apart", "nothing changes", "no comparison of two processes' clocks in the sources"},
		{26, "", "slow reader", "the watch is not blocked, the newest snapshot wins", "memory bounded"},
		{27, "", "100 reconnects", "everything follows again", "no goroutine left behind"},
		{28, "", "etcd paused, then nobody can register (no space, role revoked, password changed)", "orphans serve as long as their probes pass, beyond the grace", "pool never below full; alarm shown"},
		{29, "", "wiped with statics, overrides and a removal in force", "they stay in force, flagged", "what was removed never returns"},
		{30, "", "key deleted by hand, agent lives", "dropped at once, back by the agent's own check", "never an orphan"},
		{31, "", "proxy suspended past its TTL, resumed", "lists before its next pick", "0 picks of what was drained meanwhile"},
		{32, "", "engines that register by ZeroMQ stop to ping, or their bridge is killed", "out of etcd, and back when it goes on", "DELETE within TTL + 1 s"},
		{101, "S1", "10,000 registrations, 10 watchers in one process", "all converge", "within 2 s of the last acknowledgement"},
		{102, "S2", "put into a fleet of 1000, 5 watchers", "published by the slowest", "p99 within 10 ms"},
	}
}
