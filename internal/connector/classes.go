package connector

import "strings"

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
