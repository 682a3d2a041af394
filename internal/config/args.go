package config

import (
	"strings"

	"github.com/pdmesh/pdmesh/internal/settings"
)

// NormalizeArgs rewrites the forms that the reference proxies' command lines
// use and pflag does not know:
//
//	--prefill a b -d c d         →  --prefill=a --prefill=b --decode=c --decode=d
//	--prefiller-ports 8100 8101  →  --prefiller-ports=8100 --prefiller-ports=8101
//	--etcd-gateway off           →  --etcd-gateway=off
//
// A list takes every following argument up to the next one that begins with a
// dash. A list without any value becomes an empty one, which LoadProxy
// refuses by name, instead of swallowing the next flag. Everything after "--"
// and everything it does not know is left as it is.
func NormalizeArgs(args []string) []string {
	kinds := make(map[string]setting)
	for _, f := range referenceFlags() {
		kinds["--"+f.name] = f.setting
	}
	for _, s := range proxySettings() {
		kinds["--"+s.name] = s
		if s.short != "" {
			kinds["-"+s.short] = s
		}
	}
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(out, args[i:]...)
		}
		name, value, joined := strings.Cut(arg, "=")
		s, known := kinds[name]
		switch {
		case !known:
			out = append(out, arg)
		case s.kind == kindList:
			long := "--" + s.name + "="
			before := len(out)
			if joined {
				out = append(out, long+value)
			}
			for i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				i++
				out = append(out, long+args[i])
			}
			if len(out) == before {
				out = append(out, long)
			}
		case s.kind == kindSwitch && !joined && i+1 < len(args) && isSwitchWord(args[i+1]):
			i++
			out = append(out, arg+"="+args[i])
		case !joined && i+1 < len(args):
			// The value of an ordinary flag is passed over, so that one that
			// looks like a flag (--model -p) is not taken for one.
			out = append(out, arg)
			if s.kind != kindSwitch {
				i++
				out = append(out, args[i])
			}
		default:
			out = append(out, arg)
		}
	}
	return out
}

func isSwitchWord(s string) bool {
	_, err := settings.Switch(s)
	return err == nil
}
