package doctor

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Members are the instances of the fleet.
type Members struct {
	// Snapshot is the membership from the records, nil if it is not known.
	Snapshot *instance.Snapshot
	// Probes are the results of probes from here; nil means healthy.
	Probes map[instance.Key]error
	// Models are the models of engines that were queried from here.
	Models map[instance.Key]instance.Facts
	// Paces has the pace of the latest requests of all proxies, for instances with samples.
	Paces map[instance.Key]instance.ListedPace
}

// all returns the entries of the snapshot without pending adds.
func (m *Members) all() []*instance.Instance {
	if m.Snapshot == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(m.Snapshot.All()), func(in *instance.Instance) bool { return in.View == instance.Pending })
}

// dialect returns the connector of an instance, with an error if no proxy uses it. byDefault
// is the connector of records that name none.
func dialect(in *instance.Instance, byDefault string) (connector.Dialect, error) {
	d, err := connector.OfRecord(&in.Record, byDefault)
	if err == nil && in.Record.State != instance.Starting {
		err = d.Lacks(in)
	}
	return d, err
}

func (m *Members) rejected(root, byDefault string, r *report) {
	for _, in := range m.all() {
		f := Finding{Severity: Error, Subject: in.Key.String(), What: "its value in etcd is rejected: no proxy uses it", Why: in.Reason}
		if in.View != instance.Rejected {
			_, err := dialect(in, byDefault)
			if err == nil || in.Intent == instance.Removed {
				continue
			}
			f.What, f.Why = "its record is rejected by every proxy", err.Error()
		}
		show := r.pdctl("get", in.Key.String())
		switch address, err := instance.ParseAddress(in.Address); {
		case err != nil:
			f.What = "its key is not that of an instance: no proxy uses it"
			f.Cure = "remove it; the program that writes it must name the engine by host:port"
			// After "--" any address is an argument, not a flag.
			f.Commands = []string{shell(slices.Concat([]string{"pdctl"}, r.Reach.Pdctl, []string{"remove", string(in.Role), "--", in.Address})...)}
			r.add(f)
			continue
		case address != in.Address:
			// pdctl remove would also remove the instance with the canonical address.
			f.Cure = "delete this key; the program that writes it must name the engine by " + address
			f.Commands = []string{r.etcdctl("del", root+in.Key.String())}
			r.add(f)
			continue
		}
		if in.Static() {
			f.Cure = "remove the instance and add it again; pdctl add asks the engine for the facts"
			f.Commands = []string{show, r.pdctl("remove", string(in.Role), in.Address), r.pdctl("add", string(in.Role), in.Address)}
		} else {
			f.Cure = "the agent, or another program with its lease, has written it: correct or upgrade that program, and restart it"
			f.Commands = []string{show}
		}
		if strings.Contains(f.Why, "connector") {
			f.Cure += fmt.Sprintf("; --connector is one of %s", strings.Join(connector.Names(), ", "))
		}
		r.add(f)
	}
}

// limits reports the limits of API keys that are invalid.
func (m *Members) limits(r *report) {
	if m.Snapshot == nil {
		return
	}
	for _, d := range m.Snapshot.Documents.In(schema.Limits) {
		if _, err := instance.DecodeKeyLimits(d.Value); err != nil {
			r.add(Finding{
				Severity: Error, Subject: d.Key.String(), What: "its limits in etcd are invalid: proxies use the previous ones, or none after their start", Why: err.Error(),
				Cure: "remove the limits, and set them again with pdctl limit set", Commands: []string{r.pdctl("limit", "rm", d.Address)},
			})
		}
	}
}

// engines reports the engines that get no requests, from records, probes and the reports of proxies.
func (m *Members) engines(proxies Proxies, r *report) {
	for _, in := range m.all() {
		if in.View == instance.Rejected || in.Intent == instance.Removed {
			continue
		}
		host, _, _ := net.SplitHostPort(in.Address)
		commands := []string{shell("curl", "-i", cmp.Or(in.Record.Scheme, "http")+"://"+in.Address+"/health"), r.pdctl("history", string(in.Role), in.Address)}
		probe, asked := m.Probes[in.Key]
		switch {
		case in.Record.State == instance.Down && !in.Static():
			what := "its engine is dead, and its agent is alive"
			why := "the agent renews the lease and reports down: " + cmp.Or(instance.Printable(in.Record.Cause, 80), "the engine refuses probes, or answers with an error")
			cure := fmt.Sprintf("restart the engine on %s, after you have read its log; the agent registers it again by itself, without a restart", host)
			const unusable = "its agent cannot use its engine"
			switch in.Record.Cause {
			case instance.CauseSlow:
				what, why = "its engine does not answer, and its agent is alive", "the agent renews the lease and reports down (slow): the engine does not answer probes, because it is busy or hangs"
			case "HTTP 401", "HTTP 403":
				what, cure = unusable, fmt.Sprintf("correct --engine-api-key of its agent on %s", host)
			case "no TLS":
				what, cure = unusable, fmt.Sprintf("correct --engine-ca, --engine-cert and --engine-key of its agent on %s, or the certificate of the engine; the log of the agent has the reason", host)
			}
			r.add(Finding{Severity: Error, Subject: in.Key.String(), What: what, Why: why, Cure: cure, Commands: commands})
		case in.Record.State == instance.Down:
			r.add(Finding{
				Severity: Error, Subject: in.Key.String(), What: "its static record says down", Why: "no agent updates a static record: it stays down until another record is written",
				Cure: "write the record again when the engine runs", Commands: []string{r.pdctl("remove", string(in.Role), in.Address), r.pdctl("add", string(in.Role), in.Address)},
			})
		case asked && probe != nil:
			r.add(Finding{
				Severity: Error, Subject: in.Key.String(), What: "it does not answer /health from here", Why: probe.Error(),
				Cure:     fmt.Sprintf("check that the engine runs on %s, and that a firewall lets this machine through; if the engine will not return, remove the instance", host),
				Commands: append(commands, r.pdctl("remove", string(in.Role), in.Address)),
			})
		case in.Record.State == instance.Starting && in.Record.Cause == instance.CauseNoEngineIDs:
			r.add(Finding{
				Severity: Warning, Subject: in.Key.String(), What: "it gets no requests: its bootstrap server " + in.Bootstrap() + " does not return engine ids",
				Why:      "the engine answers its agent, and its bootstrap server does not",
				Cure:     "check --bootstrap-port of the agent, VLLM_MOONCAKE_BOOTSTRAP_PORT of the engine, and that no firewall is between them; the log of the agent has the error",
				Commands: []string{shell("curl", "-i", "http://"+in.Bootstrap()+"/query"), commands[1]},
			})
		default:
			proxies.unused(in, commands, r)
		}
	}
}

// kvRoles reports NIXL engines of one role with kv_role kv_both. vLLM 0.32 logs that this is deprecated
// (NixlConnector in kv_connector/v1/nixl/connector.py). Engines in both roles need kv_both. byDefault is
// the connector of records that name none.
func (m *Members) kvRoles(byDefault string, r *report) {
	for _, in := range m.all() {
		_, both := m.Snapshot.Lookup(in.Key.Other())
		d, err := dialect(in, byDefault)
		nixl := in.Record.Transfer == instance.TransferNIXL || err == nil && (d.Name() == "nixl" || d.Name() == "nixl_push")
		if in.Record.KVRole != "kv_both" || both || !nixl || in.View == instance.Rejected || in.Intent == instance.Removed {
			continue
		}
		role := map[instance.Role]string{instance.Prefill: "kv_producer", instance.Decode: "kv_consumer"}[in.Role]
		r.add(Finding{
			Severity: Note, Subject: in.Key.String(), What: "its kv_role is kv_both, which is deprecated with NIXL",
			Why:  "vLLM 0.32 logs a deprecation warning for NixlConnector, and a later release will refuse it",
			Cure: fmt.Sprintf(`set "kv_role":"%s" in --kv-transfer-config of this engine at its next restart`, role),
		})
	}
}
