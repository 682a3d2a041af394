package connector

import (
	"errors"
	"fmt"
	"strings"
)

// ErrUnknown is wrapped by the errors of Canonical and New.
var ErrUnknown = errors.New("unknown connector")

// registry lists every dialect. There is no second list; which classes of engines
// speak each of them stands in OfClass.
func registry() []Dialect {
	return []Dialect{plain{}, nixl{}, mooncake{}, lmcache{}}
}

// Default is the dialect of an instance whose record names none.
const Default = "plain"

// Names lists the short names.
func Names() []string {
	var names []string
	for _, d := range registry() {
		names = append(names, d.Name())
	}
	return names
}

// Canonical gives the short name of a connector as it may stand in a record:
// a short name or the class name of the engine's connector, in any case. The empty
// name is empty.
func Canonical(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	for _, d := range registry() {
		if strings.EqualFold(name, d.Name()) {
			return d.Name(), nil
		}
	}
	if c, _ := OfClass(name); c.Dialect != "" {
		return c.Dialect, nil
	}
	return "", fmt.Errorf("%w %q: known are %s", ErrUnknown, name, strings.Join(Names(), ", "))
}

// New gives the dialect of that name; the empty name means Default.
func New(name string) (Dialect, error) {
	if name == "" {
		name = Default
	}
	short, err := Canonical(name)
	if err != nil {
		return nil, err
	}
	for _, d := range registry() {
		if d.Name() == short {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%w %q", ErrUnknown, name)
}

// Class is what an engine's connector, by the name of its class, is to the proxy.
type Class struct {
	Dialect string // short name, "" if none fits
	Refused string // why none fits
	// Local: it moves blocks between memories of one machine, and decides nothing
	// where it stands beside another connector.
	Local bool
}

// OfClass knows the connectors of vLLM and of vllm-ascend, in any case; false for
// all others. Instances that share a store need no word about the transfer (plain);
// NIXL and vllm-ascend's pulling connector carry kv_transfer_params from the prefill
// answer to the decode request.
func OfClass(name string) (Class, bool) {
	name = strings.ToLower(name)
	switch name {
	case "nixlconnector", "nixlpullconnector", "mooncakeconnectorv1":
		return Class{Dialect: "nixl"}, true
	case "mooncakeconnector":
		return Class{Dialect: "mooncake"}, true
	case "mooncakestoreconnector", "mooncakeconnectorstorev1", "ascendstoreconnector",
		"lmcacheconnector", "lmcacheconnectorv1", "lmcachempconnector",
		"sharedstorageconnector", "exampleconnector", "hf3fskvconnector", "flexkvconnectorv1",
		"pyncclconnector":
		return Class{Dialect: "plain"}, true
	case "offloadingconnector", "simplecpuoffloadconnector":
		return Class{Dialect: "plain", Local: true}, true
	case "nixlpushconnector":
		return Class{Refused: "prefill pushes to decode, which is not served yet"}, true
	case "moriioconnector":
		return Class{Refused: "its ids and registrations by ZMQ are not served yet"}, true
	case "mooncakelayerwiseconnector":
		return Class{Refused: "decode asks the proxy for the prefill, which is not served yet"}, true
	case "p2pncclconnector":
		return Class{Refused: "it is gone since vLLM 0.24"}, true
	}
	return Class{}, false
}
