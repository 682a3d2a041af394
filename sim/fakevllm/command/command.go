// Package command is the program fakevllm: the engine of package fakevllm, by flags.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/observe/logging"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// errDied is the end of an engine that a request or a fault has killed.
var errDied = errors.New("the engine has died")

type flags struct {
	host, role, mode, logLevel, logFormat, events, journal string
	models                                                 []string
	port, bootstrap, side                                  int
	alloc                                                  []int
	drain                                                  time.Duration
	quiet                                                  bool
	opt                                                    fakevllm.Options
}

// Run is the whole program: 0 after a clean end, 1 for a failure, 2 for a
// wrong command line.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var f flags
	cmd := &cobra.Command{
		Use:   "fakevllm",
		Short: "A vLLM without a GPU: strict, deterministic, scriptable",
		Args:  cli.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return serve(ctx, &f, stdout, stderr) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.host, "host", "127.0.0.1", "address to listen on")
	fl.IntVar(&f.port, "port", 8000, "port to listen on, 0 for a free one")
	fl.StringVar(&f.role, "role", "both", "prefill, decode or both")
	fl.StringVar(&f.mode, "mode", "plain", "KV transfer: plain (shared pool), nixl, nixl_push, mooncake, ascend, p2p, lmcache, moriio_read or moriio_write")
	fl.StringVar(&f.opt.PingTo, "ping-to", "", "where a moriio engine registers itself, tcp://host:port")
	fl.DurationVar(&f.opt.PingInterval, "ping-interval", 0, "time between two such registrations (default 3s)")
	fl.BoolVar(&f.opt.PingOld, "ping-old", false, "register in the form of vLLM up to 0.19")
	fl.StringSliceVar(&f.models, "model", []string{"fake-model"}, "served model names")
	fl.StringSliceVar(&f.opt.Adapters, "lora-modules", nil, "names of LoRA adapters, NAME or NAME=PATH")
	fl.BoolVar(&f.opt.RuntimeLoRA, "runtime-lora", false, "have the routes that load and unload LoRA adapters (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)")
	fl.StringVar(&f.opt.APIKey, "api-key", os.Getenv("VLLM_API_KEY"), "key that /v1 requires (VLLM_API_KEY)")
	fl.DurationVar(&f.opt.TTFT, "ttft", 0, "time to the first token")
	fl.DurationVar(&f.opt.ITL, "itl", 0, "time between tokens")
	fl.IntVar(&f.opt.MaxModelLen, "max-model-len", 0, "context length in tokens (default 1048576)")
	fl.IntVar(&f.opt.MaxRunning, "max-num-seqs", 0, "requests running at once, 0 for no limit")
	fl.BoolVar(&f.opt.SplitCharacters, "split-characters", false, "write some characters as one token per byte")
	fl.StringVar(&f.opt.ReasoningParser, "reasoning-parser", "", "qwen3 or deepseek_r1: chats begin with reasoning")
	fl.StringVar(&f.opt.ToolParser, "tool-call-parser", "", "hermes: chats may call the tools that are offered")
	fl.IntVar(&f.opt.ParsedWords, "parsed-words", 24, "mean number of words of each part of a chat with one of these parsers")
	fl.IntVar(&f.opt.CacheBlocks, "num-gpu-blocks-override", 0, "blocks of the KV cache, 0 for no limit and no prefix cache")
	fl.StringVar(&f.events, "kv-events-config", "", "JSON of vLLM's option: where changes of the KV cache are published")
	fl.IntVar(&f.opt.ChunkTokens, "max-num-batched-tokens", 0, "tokens of a prompt that a decode step waits for (default 2048)")
	fl.Float64Var(&f.opt.PrefillRate, "prefill-rate", 0, "prompt tokens computed a second, one prompt after the other, 0 for at once")
	fl.DurationVar(&f.opt.ITLPerRequest, "itl-per-request", 0, "what every other running request adds to --itl")
	fl.StringVar(&f.opt.Version, "vllm-version", "", "version that /version reports (default 0.24.0)")
	fl.BoolVar(&f.opt.Admin, "faults", false, "serve /fake/faults, /fake/core and /fake/state")
	fl.BoolVar(&f.opt.DevMode, "dev-mode", os.Getenv("VLLM_SERVER_DEV_MODE") == "1", "serve /is_sleeping and /is_paused (VLLM_SERVER_DEV_MODE=1)")
	fl.BoolVar(&f.opt.DisableLogStats, "disable-log-stats", false, "report no statistics in /metrics")
	fl.DurationVar(&f.opt.KVLease, "kv-lease", 30*time.Second, "how long a finished prefill waits for its decode")
	fl.StringVar(&f.opt.EngineID, "engine-id", "", "engine id in --kv-transfer-config, the same after a restart (default: a random one at each start)")
	fl.StringVar(&f.opt.SideChannelHost, "side-channel-host", "", "host that other engines reach the side channel by (default --host)")
	fl.IntVar(&f.side, "side-channel-port", 0, "port that other engines fetch KV caches from, 0 for a free one")
	fl.IntVar(&f.bootstrap, "bootstrap-port", 8998, "port of a mooncake prefill's bootstrap server, 0 for a free one")
	fl.DurationVar(&f.opt.TransferTimeout, "transfer-timeout", 480*time.Second, "how long a mooncake decode waits for its prefill, and a prefill's blocks for a decode")
	fl.StringVar(&f.opt.NotifyAddr, "notify", "", "host:port that an lmcache prefill notifies by ZeroMQ")
	fl.IntSliceVar(&f.alloc, "alloc-port", nil, "ports of an lmcache decode, one for each rank (default a free one)")
	fl.IntVar(&f.opt.DPSize, "data-parallel-size", 1, "data-parallel ranks behind the address (plain, nixl, nixl_push, ascend)")
	fl.StringVar(&f.journal, "journal", "", "file to which the arrival and the end of each generating request are appended")
	fl.BoolVar(&f.opt.ScaleOut, "enable-scale-out", false, "have /inference/v1/generate")
	fl.BoolVar(&f.opt.StrictPrefill, "strict", false, "count what a good proxy would not send as violations")
	fl.BoolVar(&f.opt.PromptTokensDetails, "enable-prompt-tokens-details", false, "report cached tokens in usage")
	fl.DurationVar(&f.drain, "drain-timeout", 10*time.Second, "how long SIGTERM lets running requests finish; then they end with an error event")
	fl.BoolVar(&f.quiet, "quiet", false, "no ready line and no log")
	fl.StringVar(&f.logLevel, "log-level", "info", "log level")
	fl.StringVar(&f.logFormat, "log-format", "text", "text or json")
	return cli.Run(ctx, cmd, args, stdout, stderr)
}

func serve(ctx context.Context, f *flags, stdout, stderr io.Writer) error {
	if f.quiet {
		stderr = io.Discard
	}
	log, err := logging.New(stderr, f.logLevel, f.logFormat)
	if err != nil {
		return cli.Wrongf("--log-level or --log-format: %w", err)
	}
	for name, port := range map[string]int{"port": f.port, "bootstrap-port": f.bootstrap, "side-channel-port": f.side} {
		if port < 0 || port > 65535 {
			return cli.Wrongf("--%s %d is no port", name, port)
		}
	}
	o := f.opt
	o.Log = log
	o.SideChannelAddr = net.JoinHostPort(f.host, strconv.Itoa(f.side))
	o.BootstrapAddr = net.JoinHostPort(f.host, strconv.Itoa(f.bootstrap))
	for _, port := range f.alloc {
		o.AllocAddrs = append(o.AllocAddrs, net.JoinHostPort(f.host, strconv.Itoa(port)))
	}
	o.Addr = net.JoinHostPort(f.host, strconv.Itoa(f.port))
	o.Mode, o.Models = fakevllm.Mode(f.mode), f.models
	if f.role != "both" {
		if f.role == "" {
			return cli.Wrongf("--role is empty: use prefill, decode or both")
		}
		o.Role = fakevllm.Role(f.role)
	}
	o.RecordLimit = fakevllm.RecordNone
	if f.events != "" {
		if o.KVEvents, err = fakevllm.ParseKVEvents(f.events); err != nil {
			return cli.Wrong(err)
		}
	}
	if f.journal != "" {
		file, err := os.OpenFile(f.journal, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return cli.Wrongf("--journal: %w", err)
		}
		defer file.Close()
		o.Journal = fakevllm.NewJournal(file)
	}
	s, err := fakevllm.Start(ctx, o)
	switch {
	case errors.Is(err, fakevllm.ErrOptions):
		return cli.Wrong(err)
	case err != nil:
		return err
	}
	defer s.Close()
	if !f.quiet {
		line := fmt.Sprintf("fakevllm: %s %s serving %s on %s", f.role, f.mode, f.models[0], s.URL())
		if port := s.Bootstrap(); port != 0 {
			line += fmt.Sprintf(", bootstrap port %d", port)
		}
		_, _ = fmt.Fprintln(stdout, line)
	}
	select {
	case <-ctx.Done():
	case <-s.Died():
		return errDied
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.drain)
	defer cancel()
	if err := s.Shutdown(end); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("shut down: %w", err)
	}
	return nil
}
