package connector

import "strings"

// Class is a connector class of an engine, with the dialect that the proxy uses for it.
type Class struct {
	Name    string
	Dialect string // short name, "" if no dialect fits
	Refused string // why no dialect fits
	// Itself describes how its engines register themselves without agents, "" if they do not.
	Itself string
	// Page is its documentation page, as a path from the root of the repository.
	Page string
	// Local reports whether it moves blocks only within one machine. In a MultiConnector with
	// other connectors it is ignored.
	Local bool
}

// Pages of the documentation.
const (
	pages       = "docs/connectors/"
	pageRefused = pages + "refused.md"
)

func speaks(name, dialect string) Class {
	return Class{Name: name, Dialect: dialect, Page: pages + dialect + ".md"}
}

func local(name string) Class {
	c := speaks(name, Default)
	c.Local = true
	return c
}

func refused(name, why string) Class { return Class{Name: name, Refused: why, Page: pageRefused} }

// Reasons of refused classes.
const (
	asksForPrefill = "decode requests the prefill from the proxy, which is not supported yet"
	encoderFirst   = "separate encoder instances are not supported yet; prefill encodes media"
)

// Classes lists the connectors of vLLM, vllm-ascend and SGLang. Connectors with a store
// that instances share need no parameters (plain).
func Classes() []Class {
	return []Class{
		// vLLM
		speaks("NixlConnector", "nixl"),
		speaks("NixlPullConnector", "nixl"),
		speaks("NixlPushConnector", "nixl_push"),
		speaks("MooncakeConnector", "mooncake"),
		speaks("MooncakeStoreConnector", Default),
		local("OffloadingConnector"), // with a tier of type p2p it is P2POffloading
		local("SimpleCPUOffloadConnector"),
		local("HiSparseConnector"),
		local("DecodeBenchConnector"),
		speaks("LMCacheConnector", Default),
		speaks("LMCacheConnectorV1", Default),
		speaks("LMCacheMPConnector", Default),
		speaks("MultiConnector", Default), // the agent inspects the inner connectors
		speaks("FlexKVConnectorV1", Default),
		speaks("HF3FSKVConnector", Default),
		speaks("ExampleConnector", Default),
		local("ExampleHiddenStatesConnector"),
		speaks("SharedStorageConnector", Default),
		speaks("PyNcclConnector", Default),
		{Name: "MoRIIOConnector", Itself: "its engines register themselves, at a proxy or an agent with --zmq-register", Page: pages + MoRIIO + ".md"},
		refused("P2pNcclConnector", "removed in vLLM 0.24"),
		refused("ECExampleConnector", encoderFirst),
		refused("ECCPUConnector", encoderFirst),
		refused("ECMooncakeConnector", encoderFirst),
		// vllm-ascend
		speaks("MooncakeConnectorV1", "ascend"),
		speaks("MooncakeHybridConnector", "ascend"),
		speaks("MooncakeConnectorStoreV1", Default),
		speaks("AscendStoreConnector", Default),
		speaks("AscendMultiConnector", Default),
		speaks("UCMConnector", Default),
		speaks("LMCacheAscendConnector", Default),
		local("RecomputeCPUOffloadConnector"),
		refused("MooncakeLayerwiseConnector", asksForPrefill),
		refused("SfaRemoteD2HConnector", asksForPrefill),
		// SGLang
		refused("SGLang", "both legs of SGLang meet by bootstrap_room, which is not supported yet"),
	}
}

// OfClass returns the class with this name, in any case; false if it is not known.
func OfClass(name string) (Class, bool) {
	for _, c := range Classes() {
		if strings.EqualFold(name, c.Name) {
			return c, true
		}
	}
	return Class{}, false
}
