package main

// line is one row of the matrix: the fault and its required outcome.
type line struct {
	row                  int
	name                 string // shown instead of the number in rows that are not faults
	fault, expected, bar string
}

func (l line) id() string {
	if l.name != "" {
		return l.name
	}
	return itoa(l.row)
}

// matrix lists all rows in the order of the page. Times are the limits on a machine like this one.
func matrix() []line {
	return []line{
		{1, "", "agent killed, engine lives", "requests still go to the engine; it is left out after --orphan-grace if most of its role is registered", "0 failed requests; DELETE within TTL + 1 s"},
		{2, "", "agent and engine killed", "the refused connection takes it out; its key goes with its lease", "out within 1 s; 0 errors before the first byte"},
		{3, "", "engine hangs (SIGSTOP)", "its agent writes down, or the proxy finds it silent; requests that wait on it go to another instance", "out within 3 s beside an instance that answers; never while none does; 0 failed requests"},
		{4, "", "graceful stop", "drained, requests in flight finish, lease revoked", "0 cut streams; DELETE within 50 ms of the revocation"},
		{5, "", "follower of three killed", "the watch moves to another member", "gap of at most 1 s; nothing lost"},
		{6, "", "leader of three killed", "election of a new leader; leases stay", "gap of at most 4 s; 0 leases lost"},
		{7, "", "member paused, blackholed, half open, one way", "keepalive or audit moves the watch to another member", "15 s by keepalive; 5 s with an audit every 2 s"},
		{8, "", "quorum lost", "the proxy serves the last membership, and reports it as stale", "0 failed requests; nodes unchanged"},
		{9, "", "etcd paused past the TTL, resumed", "all leases expire; requests still go to the engines; agents register again", "no instance lost; back within TTL/3 + 1 s"},
		{10, "", "etcd killed, restarted on its data", "same leases, no DELETE", "key versions unchanged; following within 5 s"},
		{11, "", "data wiped, same flags", "proxies find the new etcd; agents register again", "found within audit + 1 s; never without instances; 0 failed requests"},
		{12, "", "wiped, and the new etcd is past the old revision", "the audit compares keys and finds it", "within 2 audits; never without instances"},
		{13, "", "compaction while disconnected", "the proxy lists all keys and compares them", "0 spurious removals"},
		{14, "", "proxy starts while etcd is down", "the proxy loads its saved membership, probes it, and serves", "first answer within 2 s; nothing removed comes back"},
		{15, "", "proxy starts, no etcd, no snapshot", "503 as an OpenAI error; not ready until etcd is there", "no crash"},
		{16, "", "10,000 registrations", "10 proxy processes equal", "within 2 s of the last acknowledgement"},
		{17, "", "10,000 leases expire at once", "the proxy does not drop them all; probes decide", "p99 of a pick within 10 % of an idle fleet; no instance lost"},
		{18, "", "bad JSON, 1 MiB, binary, role clash, unknown version", "the record is rejected, or its last valid value stays in use", "others untouched"},
		{19, "", "etcd out of space", "registered instances stay; a new one gets an error with the reason", "0 failed requests; the error says why"},
		{20, "", "token expired, role revoked, password changed", "the last membership stays in use; a notice; recovery without a restart", "within 5 s of the repair"},
		{21, "", "two agents for one address", "the second agent refuses to register; a notice", "the first's record byte-identical"},
		{22, "", "drain, then the agent registers again", "still draining", "the override wins"},
		{23, "", "removal of a leased instance", "stays out", "out for as long as the override exists"},
		{24, "", "1000 watchers", "one put reaches all of them", "within 200 ms"},
		{25, "", "clocks an hour apart", "nothing changes", "no comparison of two processes' clocks in the source code"},
		{26, "", "slow reader", "the watch is not blocked, the newest snapshot wins", "memory bounded"},
		{27, "", "100 reconnects", "all watches follow again", "no goroutine left behind"},
		{28, "", "etcd paused, then no instance can register (no space, role revoked, password changed)", "engines are used while their probes pass, also after --orphan-grace", "no instance lost; a notice is shown"},
		{29, "", "etcd wiped while static instances, overrides and a removal exist", "they stay in effect and are marked as kept", "what was removed never returns"},
		{30, "", "key deleted by hand, agent lives", "dropped at once; the agent finds it and registers again", "no orphan"},
		{31, "", "proxy suspended past its TTL, resumed", "the proxy lists all keys before its next pick", "0 picks of what was drained meanwhile"},
		{32, "", "engines that register by ZeroMQ stop pinging, or the process that registers them is killed", "out of etcd, and back when pings come again", "DELETE within TTL + 1 s"},
		{33, "", "whole machine suspended past the TTL: proxy, etcd, agents, engines", "all leases expire; the only instance of a role is used throughout, in whatever state", "0 failed requests, 0 cut streams"},
		{34, "", "members of etcd replaced one by one at other addresses", "proxies and agents follow; leases stay; a restarted proxy finds the members in its state directory", "0 leases lost, 0 failed requests"},
		{35, "", "proxy with instances on its command line starts while etcd is full, or away", "it serves them; they are in etcd once it accepts writes", "0 failed requests"},
		{101, "S1", "10,000 registrations, 10 watchers in one process", "all converge", "within 2 s of the last acknowledgement"},
		{102, "S2", "put into a fleet of 1000, 5 watchers", "published by the slowest", "p99 within 10 ms"},
	}
}
