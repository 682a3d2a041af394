package lmcache

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// EnvConfig is the variable that names LMCache's configuration file.
const EnvConfig = "LMCACHE_CONFIG_FILE"

// ErrConfig is wrapped by the errors of LoadConfig.
var ErrConfig = errors.New("LMCache's configuration")

// Config is the part of LMCache's configuration about its PD backend.
type Config struct {
	Role      string // sender, receiver or both; "" when the PD backend is off
	ProxyHost string
	ProxyPort int
	PeerHost  string
	Init      []int // by rank
	Alloc     []int
}

// oldNames maps the names of LMCache before 0.3 to the current ones.
func oldNames() map[string]string {
	return map[string]string{
		"enable_xpyd": "enable_pd", "nixl_role": "pd_role", "nixl_peer_host": "pd_peer_host",
		"nixl_peer_init_port": "pd_peer_init_port", "nixl_peer_alloc_port": "pd_peer_alloc_port",
		"nixl_proxy_host": "pd_proxy_host", "nixl_proxy_port": "pd_proxy_port",
	}
}

// LoadConfig reads the file that LMCACHE_CONFIG_FILE names (lmcache/v1/config.py).
func LoadConfig(path string) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return ParseConfig(raw)
}

// ParseConfig reads the text of such a file. A port may be a number, a list, or numbers
// with commas between them.
func ParseConfig(raw []byte) (Config, error) {
	var all map[string]any
	if err := yaml.Unmarshal(raw, &all); err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	for was, is := range oldNames() {
		if v, ok := all[was]; ok && all[is] == nil {
			all[is] = v
		}
	}
	var c Config
	if on, _ := all["enable_pd"].(bool); !on {
		return c, nil
	}
	c.Role, c.ProxyHost, c.PeerHost = text(all["pd_role"]), text(all["pd_proxy_host"]), text(all["pd_peer_host"])
	switch c.Role {
	case "sender", "receiver", "both":
	default:
		return Config{}, fmt.Errorf("%w: pd_role %.40q", ErrConfig, c.Role)
	}
	var errs []error
	ports := func(name string) []int {
		list, err := Ports(text(all[name]))
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: %s: %w", ErrConfig, name, err))
		}
		return list
	}
	c.Init, c.Alloc = ports("pd_peer_init_port"), ports("pd_peer_alloc_port")
	if proxy := ports("pd_proxy_port"); len(proxy) > 0 {
		c.ProxyPort = proxy[0]
	}
	return c, errors.Join(errs...)
}

// text returns a value of the file in the form of a command-line argument.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case []any:
		var parts []string
		for _, one := range v {
			parts = append(parts, text(one))
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(v)
}

// Ports parses comma-separated ports. Empty text has none.
func Ports(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		port, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || port < 1 || port > 65535 {
			return nil, fmt.Errorf("%.40q: no port from 1 to 65535", part)
		}
		out = append(out, port)
	}
	return out, nil
}
