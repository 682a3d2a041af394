// Package scraped makes Prometheus collectors of values that are read at each scrape.
package scraped

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Emit sends a sample of a family, with the values of its labels in order.
type Emit func(name string, value float64, labels ...string)

// A Family is a name with its help and labels. It is a counter if the name ends in _total, otherwise a
// gauge.
type Family struct {
	name, help string
	labels     []string
}

// New returns a family.
func New(name, help string, labels ...string) Family { return Family{name, help, labels} }

type collector struct {
	read  func(Emit)
	descs map[string]*prometheus.Desc
}

// Collector returns a collector of families, for which read emits samples at each scrape.
func Collector(read func(Emit), families ...Family) prometheus.Collector {
	c := collector{read: read, descs: make(map[string]*prometheus.Desc, len(families))}
	for _, f := range families {
		c.descs[f.name] = prometheus.NewDesc(f.name, f.help, f.labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It sends only the first of samples with equal labels, such as
// names truncated to the same text, because duplicates would make the whole scrape fail.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	sent := map[string]bool{}
	c.read(func(name string, value float64, labels ...string) {
		series := fmt.Sprintf("%s%q", name, labels)
		if sent[series] {
			return
		}
		sent[series] = true
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		d := c.descs[name]
		if d == nil {
			d = prometheus.NewInvalidDesc(errors.New("undeclared metric " + name))
		}
		m, err := prometheus.NewConstMetric(d, kind, value, labels...)
		if err != nil {
			m = prometheus.NewInvalidMetric(d, err)
		}
		ch <- m
	})
}

// Truth returns 1 for true and 0 for false.
func Truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Handler serves collectors together with the metrics of the Go runtime and of the process.
func Handler(all ...prometheus.Collector) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(all...)
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}
