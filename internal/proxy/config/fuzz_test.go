package config_test

import (
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// tryArgs is load for tests in which the command line may be wrong.
func tryArgs(args []string) (config.Proxy, error) {
	fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	config.RegisterProxyFlags(fs)
	if err := fs.Parse(config.NormalizeArgs(args)); err != nil {
		return config.Proxy{}, err
	}
	return config.LoadProxy(fs, func(name string) (string, bool) { return "/home/someone", name == "HOME" })
}

// listNames returns the flags that take lists, including short ones.
func listNames() []string {
	return []string{
		"--prefill", "--decode", "-p", "-d", "--prefiller-hosts", "--prefiller-ports", "--decoder-hosts", "--decoder-ports",
		"--prefiller-host", "--prefiller-port", "--decoder-host", "--decoder-port", "--decoder-init-port", "--decoder-alloc-port",
		"--etcd-endpoints", "--instance-allow", "--api-key",
	}
}

// words returns the words of a command line except the names of its lists,
// and the lists that it names. NormalizeArgs must change neither.
func words(args []string) (out, lists []string) {
	for _, a := range args {
		name, value, joined := strings.Cut(a, "=")
		if !strings.HasPrefix(a, "-") {
			name, value, joined = a, "", false
		}
		if slices.Contains(listNames(), name) {
			switch name {
			case "-p":
				name = "--prefill"
			case "-d":
				name = "--decode"
			}
			lists = append(lists, name)
		} else if name != "" {
			out = append(out, name)
		}
		if joined && value != "" {
			out = append(out, value)
		}
	}
	slices.Sort(lists)
	return out, slices.Compact(lists)
}

// FuzzArgs normalizes and loads any command line with one argument per line. No
// argument may get lost, and a refused command line must have an error.
func FuzzArgs(f *testing.F) {
	for _, s := range []string{
		"--model\nm\n--prefill\nlocalhost:8100\nlocalhost:8101\n--decode\nlocalhost:8200\n--port\n8000", "-p\na:1\n-d\nb:2\nc:3\n--etcd-gateway\noff",
		"--prefiller-hosts\n::1\n[2001:db8::1]\n--prefiller-ports\n8100\n8100\n--decoder-ports\n8200", "--prefill\n--decode", "--prefiller-host=a,b\n--prefiller-port\n1,2\n--decoder-port\n3",
		"--max-retries\n2\n--retry-delay\n0.1\n--check-times\n3", "--model\n-p\n--\n--prefill\nx", "--num-prefillers\n3\n--prefiller-port\n65534\n--decoder-port\n1", "--prefill=\n--retry-budget\n1e3",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		ours := config.NormalizeArgs(slices.Clone(args))
		require.Equal(t, ours, config.NormalizeArgs(slices.Clone(ours)), "%q, written again", args)
		before, lists := words(args)
		if after, still := words(ours); !slices.Equal(before, after) || !slices.Equal(lists, still) {
			t.Fatalf("%q and %q became %q and %q", before, lists, after, still)
		}
		if strings.Contains(text, "config") {
			return // could read files
		}
		if p, err := tryArgs(args); err != nil {
			require.NotEqual(t, "", strings.TrimSpace(err.Error()), "%q is refused without an error", args)
		} else if len(p.Prefill) != len(slices.Compact(slices.Sorted(slices.Values(p.Prefill)))) {
			t.Fatalf("%q names %q", args, p.Prefill)
		}
	})
}

// pairs returns the addresses that LMCache's script and the load-balance
// script build from lists of hosts and ports; ok is false if they refuse.
func pairs(hosts, ports []string, count int, lmcache bool) (out []string, ok bool) {
	switch {
	case lmcache && len(hosts) == 1 && len(ports) == 1:
		first, err := strconv.Atoi(ports[0])
		if err != nil || count < 1 || count > 1000 {
			return nil, false
		}
		ports = nil
		for i := range count {
			ports = append(ports, strconv.Itoa(first+i))
		}
		hosts = slices.Repeat(hosts, count)
	case lmcache && len(hosts) == 1:
		hosts = slices.Repeat(hosts, len(ports))
	case lmcache && len(ports) == 1:
		ports = slices.Repeat(ports, len(hosts))
	}
	if len(hosts) != len(ports) {
		return nil, false
	}
	for i, h := range hosts {
		n, err := strconv.Atoi(ports[i])
		if err != nil || n < 1 || n > 65535 {
			return nil, false
		}
		h = strings.Trim(h, "[]")
		if strings.Contains(h, ":") {
			h = "[" + h + "]"
		}
		address, err := instance.ParseAddress(h + ":" + strconv.Itoa(n))
		if err != nil {
			return nil, false
		}
		if !slices.Contains(out, address) {
			out = append(out, address)
		}
	}
	return out, true
}

// FuzzLists passes the lists of hosts and ports of the reference proxies, separated by
// commas and by spaces. It compares the instances with those of the scripts.
func FuzzLists(f *testing.F) {
	for _, s := range [][2]string{{"10.0.0.1,10.0.0.2", "8000"}, {"localhost", "7100,7101"}, {"a,b", "1,2"}, {"::1", "65535"}, {"a", "65535"}, {"a,,b", "1"}, {"a, b ", " 1 , 2"}, {"a", "0"}, {"a:1", "1"}, {"[fd00::1]", "+5"}} {
		f.Add(s[0], s[1], 1, true)
		f.Add(s[0], s[1], 3, true)
		f.Add(s[0], s[1], 1, false)
	}
	f.Fuzz(func(t *testing.T, hostList, portList string, count int, lmcache bool) {
		hosts, ports := strings.Split(hostList, ","), strings.Split(portList, ",")
		for _, list := range [][]string{hosts, ports} {
			for i := range list {
				if list[i] = strings.TrimSpace(list[i]); list[i] == "" || strings.HasPrefix(list[i], "-") && !lmcache {
					return
				}
			}
		}
		args := []string{"--prefiller-host=" + hostList, "--prefiller-port=" + portList, "--num-prefillers=" + strconv.Itoa(count), "--decoder-port=8200"}
		if !lmcache {
			args = append(append([]string{"--prefiller-hosts"}, hosts...), append([]string{"--prefiller-ports"}, ports...)...)
			args = append(args, "--decoder-ports", "8200")
		}
		want, ok := pairs(hosts, ports, count, lmcache)
		if lmcache && (count < 1 || count > 1000) {
			ok = false
		}
		p, err := tryArgs(args)
		switch {
		case err != nil && ok && !errors.Is(err, pflag.ErrHelp):
			t.Fatalf("%q is refused: %v; the script takes %q", args, err, want)
		case err == nil && !ok:
			t.Fatalf("%q is taken as %q", args, p.Prefill)
		case err == nil && !slices.Equal(p.Prefill, want):
			t.Fatalf("%q is taken as %q, want %q", args, p.Prefill, want)
		}
	})
}
