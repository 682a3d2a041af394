package suite

import (
	"slices"

	"github.com/pdmesh/pdmesh/bench/answer"
)

// Picks lists the workloads that compare policies: what a request costs is told for each
// beside the same request with another policy. They are run when they are named. No two
// prompts begin alike, so that a policy which remembers prompts has all of each to take in.
func Picks() []Workload {
	whole := func(prompt int) answer.Shape { return answer.Shape{Prompt: prompt, Tokens: 1} }
	return []Workload{
		{Name: "pick1000", About: "128 B prompt, 1 token, 32 connections, 1,000 instances", Shape: whole(128), Conns: 32, Instances: 1000, Beside: true},
		{Name: "pick64-2k", About: "2 KiB prompt, 1 token, 32 connections, 64 instances of each role", Shape: whole(2 << 10), Conns: 32, Instances: 128, Beside: true},
		{Name: "pick64-32k", About: "32k tokens (128 KiB), 1 token, 16 connections, 64 instances of each role", Shape: whole(128 << 10), Conns: 16, Instances: 128, Beside: true},
		{Name: "pick64-100k", About: "100k tokens (400 KiB), 1 token, 8 connections, 64 instances of each role", Shape: whole(400 << 10), Conns: 8, Instances: 128, Beside: true},
	}
}

// Named lists all workloads that can be named.
func Named() []Workload { return slices.Concat(Workloads(), Picks()) }
