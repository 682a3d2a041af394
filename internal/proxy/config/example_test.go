package config_test

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

// The command line of a reference proxy works unchanged, and an error names the flag.
func ExampleLoadProxy() {
	args := strings.Fields("--prefill 127.0.0.1:8100 localhost:8101 --decode 127.0.0.1:8200 --port 80000")
	fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	config.RegisterProxyFlags(fs)
	if err := fs.Parse(config.NormalizeArgs(args)); err != nil {
		fmt.Println(err)
		return
	}
	environment := map[string]string{"HOME": "/home/someone", "PD_IDLE_TIMEOUT": "soon"}
	_, err := config.LoadProxy(fs, func(name string) (string, bool) {
		value, ok := environment[name]
		return value, ok
	})
	fmt.Println(err)
	// Output:
	// --idle-timeout (from environment PD_IDLE_TIMEOUT): bad value "soon": must be a duration such as 500ms, 30s or 5m, or a number of seconds
}
