package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
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
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("pd_instance_"+name, help, append([]string{"role", "instance"}, more...), nil)
	}
	reg.MustRegister(load{
		l: l,
		digests: prometheus.NewDesc("pd_load_digests",
			"Load digests of other proxies: used, old (they count less), ignored (a newer schema, or impossible numbers).", []string{"state"}, nil),
		others:   desc("others_in_flight", "Legs that the other proxies have open on an instance, according to their load digests."),
		waiting:  desc("waiting_tokens", "Tokens of this proxy's prompts that an instance has not computed yet."),
		held:     desc("held_tokens", "Tokens of prompts that an instance holds for the legs of this proxy."),
		capacity: desc("kv_capacity_tokens", "Size of the engine's KV cache in tokens, as the engine reports it."),
		usage:    desc("kv_cache_usage", "Share of the engine's KV cache in use, from 0 to 1, as the engine reports it."),
		requests: desc("engine_requests", "Requests as the engine reports them: running, waiting, starved (waiting for room in the KV cache), fetching (waiting for their KV cache).", "state"),
		age:      desc("engine_age_seconds", "Time since the engine last reported its load."),
		rank:     desc("rank_in_flight", "Legs that this proxy has open on a data-parallel rank, for instances with several ranks.", "rank"),
		queue:    desc("rank_waiting_tokens", "Tokens of this proxy's prompts that a data-parallel rank has not computed yet.", "rank"),
		entries:  prometheus.NewDesc("pd_prefix_index_entries", "Parts of prompts that policies remember as computed, counted once for each rank.", []string{"role"}, nil),
		bytes:    prometheus.NewDesc("pd_prefix_index_bytes", "Estimated memory of these parts and of the names of blocks in them.", []string{"role"}, nil),
		used:     prometheus.NewDesc("pd_index_memory_bytes", "Estimated memory of the indexes: prompts (of all roles and models), kv_blocks.", []string{"index"}, nil),
		limit:    prometheus.NewDesc("pd_index_memory_limit_bytes", "Limit for this memory (--index-memory).", nil, nil),
		evicted:  prometheus.NewDesc("pd_index_memory_evicted_bytes_total", "Bytes that were evicted from an index because this memory was used up.", []string{"index"}, nil),
	})
}

type load struct {
	l                                                              Load
	digests, others, waiting, held, capacity, usage, requests, age *prometheus.Desc
	rank, queue, entries, bytes, used, limit, evicted              *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c load) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.digests, c.others, c.waiting, c.held, c.capacity, c.usage, c.requests, c.age, c.rank, c.queue, c.entries, c.bytes, c.used, c.limit, c.evicted} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c load) Collect(ch chan<- prometheus.Metric) {
	d := c.l.Digests()
	for state, n := range map[string]int{"used": d.Used, "old": d.Old, "ignored": d.Ignored} {
		ch <- prometheus.MustNewConstMetric(c.digests, prometheus.GaugeValue, float64(n), state)
	}
	for _, k := range indexmem.Kinds() {
		ch <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, float64(c.l.Memory.Used(k)), k.String())
		ch <- prometheus.MustNewConstMetric(c.evicted, prometheus.CounterValue, float64(c.l.Memory.Evicted(k)), k.String())
	}
	ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(c.l.Memory.Limit()))
	for role, r := range c.l.Remembered() {
		ch <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(r.Entries), string(role))
		ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(r.Memory), string(role))
	}
	c.l.EachRank(func(k instance.Key, rank int, l sched.RankLoad) {
		labels := []string{string(k.Role), k.Address, strconv.Itoa(rank)}
		ch <- prometheus.MustNewConstMetric(c.rank, prometheus.GaugeValue, float64(l.InFlight), labels...)
		ch <- prometheus.MustNewConstMetric(c.queue, prometheus.GaugeValue, float64(l.Waiting), labels...)
	})
	c.l.Each(func(k instance.Key, t sched.Total) {
		gauge := func(d *prometheus.Desc, v float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{string(k.Role), k.Address}, more...)...)
		}
		gauge(c.others, t.Others)
		gauge(c.waiting, float64(t.Waiting))
		gauge(c.held, float64(t.Held))
		e := t.Engine
		if e == nil {
			return
		}
		if n := e.All.Capacity; n > 0 {
			gauge(c.capacity, float64(n))
		}
		gauge(c.usage, e.All.Usage)
		gauge(c.age, time.Since(e.At).Seconds())
		gauge(c.requests, e.All.Running, "running")
		gauge(c.requests, e.All.Waiting, "waiting")
		gauge(c.requests, e.All.Starved, "starved")
		gauge(c.requests, e.All.Fetching, "fetching")
	})
}
