package settings

import "strings"

// Normalize rewrites forms of other command lines that pflag does not know:
//
//	--prefill a b -d c d         →  --prefill=a --prefill=b --decode=c --decode=d
//	--prefiller-ports 8100 8101  →  --prefiller-ports=8100 --prefiller-ports=8101
//	--etcd-gateway off           →  --etcd-gateway=off
//
// A Spread list takes every following argument up to the next one that begins with a dash.
// Without any it becomes an empty value, which Load refuses, instead of consuming the next
// flag. Unknown arguments and everything after "--" are unchanged.
func (t Table) Normalize(args []string) []string {
	flags := make(map[string]Setting)
	for _, s := range t {
		flags["--"+s.Name] = s
		if s.Short != "" {
			flags["-"+s.Short] = s
		}
	}
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(out, args[i:]...)
		}
		name, value, joined := strings.Cut(arg, "=")
		s, known := flags[name]
		switch {
		case !known:
			out = append(out, arg)
		case s.Spread:
			long := "--" + s.Name + "="
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
		case s.Kind == OnOff && !joined && i+1 < len(args) && isSwitchWord(args[i+1]):
			i++
			out = append(out, arg+"="+args[i])
		case !joined && i+1 < len(args):
			// The value of an ordinary flag may look like a flag (--model -p).
			out = append(out, arg)
			if s.Kind != OnOff {
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
	_, err := Switch(s)
	return err == nil
}
