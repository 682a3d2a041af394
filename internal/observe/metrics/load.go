package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/observe/metrics/scraped"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// Load is the source of the metrics about the load of instances, read at scrape time.
type Load struct {
	// Each calls a function for every instance.
	Each func(func(instance.Key, sched.Total))
	// EachRank calls a function for every rank of instances with several ranks.
	EachRank func(func(k instance.Key, rank int, l sched.RankLoad))
	// Remembered returns the size of the policies' prompt indexes, by role; roles without
	// an index are absent.
	Remembered func() map[instance.Role]policy.Remembered
	// Digests returns the number of digests of other proxies.
	Digests func() Digests
	// Memory is the memory of all indexes.
	Memory *indexmem.Budget
}

// Digests counts the load digests of the other proxies.
type Digests struct{ Used, Old, Ignored int }

// Register registers the metrics.
func (l Load) Register(reg prometheus.Registerer) {
	reg.MustRegister(scraped.Collector(l.read,
		scraped.New("pd_load_digests", "Load digests of other proxies: used, old (they count less), ignored (a newer schema, or impossible numbers).", "state"),
		scraped.New("pd_instance_others_in_flight", "Legs that the other proxies have open on an instance, according to their load digests.", "role", "instance"),
		scraped.New("pd_instance_waiting_tokens", "Tokens of this proxy's prompts that an instance has not computed yet.", "role", "instance"),
		scraped.New("pd_instance_held_tokens", "Tokens of prompts that an instance holds for the legs of this proxy.", "role", "instance"),
		scraped.New("pd_instance_kv_capacity_tokens", "Size of the engine's KV cache in tokens, as the engine reports it.", "role", "instance"),
		scraped.New("pd_instance_kv_cache_usage", "Share of the engine's KV cache in use, from 0 to 1, as the engine reports it.", "role", "instance"),
		scraped.New("pd_instance_engine_requests", "Requests as the engine reports them: running, waiting, starved (waiting for room in the KV cache), fetching (waiting for their KV cache).", "role", "instance", "state"),
		scraped.New("pd_instance_engine_age_seconds", "Time since the engine last reported its load.", "role", "instance"),
		scraped.New("pd_instance_rank_in_flight", "Legs that this proxy has open on a data-parallel rank, for instances with several ranks.", "role", "instance", "rank"),
		scraped.New("pd_instance_rank_waiting_tokens", "Tokens of this proxy's prompts that a data-parallel rank has not computed yet.", "role", "instance", "rank"),
		scraped.New("pd_prefix_index_entries", "Parts of prompts that policies remember as computed, counted once for each rank.", "role"),
		scraped.New("pd_prefix_index_bytes", "Estimated memory of these parts and of the names of blocks in them.", "role"),
		scraped.New("pd_index_memory_bytes", "Estimated memory of the indexes: prompts (of all roles and models), kv_blocks.", "index"),
		scraped.New("pd_index_memory_limit_bytes", "Limit for this memory (--index-memory)."),
		scraped.New("pd_index_memory_evicted_bytes_total", "Bytes that were evicted from an index because this memory was used up.", "index"),
	))
}

func (l Load) read(emit scraped.Emit) {
	d := l.Digests()
	emit("pd_load_digests", float64(d.Used), "used")
	emit("pd_load_digests", float64(d.Old), "old")
	emit("pd_load_digests", float64(d.Ignored), "ignored")
	for _, k := range indexmem.Kinds() {
		emit("pd_index_memory_bytes", float64(l.Memory.Used(k)), k.String())
		emit("pd_index_memory_evicted_bytes_total", float64(l.Memory.Evicted(k)), k.String())
	}
	emit("pd_index_memory_limit_bytes", float64(l.Memory.Limit()))
	for role, r := range l.Remembered() {
		emit("pd_prefix_index_entries", float64(r.Entries), string(role))
		emit("pd_prefix_index_bytes", float64(r.Memory), string(role))
	}
	l.EachRank(func(k instance.Key, rank int, l sched.RankLoad) {
		emit("pd_instance_rank_in_flight", float64(l.InFlight), string(k.Role), k.Address, strconv.Itoa(rank))
		emit("pd_instance_rank_waiting_tokens", float64(l.Waiting), string(k.Role), k.Address, strconv.Itoa(rank))
	})
	l.Each(func(k instance.Key, t sched.Total) {
		of := func(name string, v float64, more ...string) {
			emit("pd_instance_"+name, v, append([]string{string(k.Role), k.Address}, more...)...)
		}
		of("others_in_flight", t.Others)
		of("waiting_tokens", float64(t.Waiting))
		of("held_tokens", float64(t.Held))
		e := t.Engine
		if e == nil {
			return
		}
		if n := e.All.Capacity; n > 0 {
			of("kv_capacity_tokens", float64(n))
		}
		of("kv_cache_usage", e.All.Usage)
		of("engine_age_seconds", time.Since(e.At).Seconds())
		of("engine_requests", e.All.Running, "running")
		of("engine_requests", e.All.Waiting, "waiting")
		of("engine_requests", e.All.Starved, "starved")
		of("engine_requests", e.All.Fetching, "fetching")
	})
}
