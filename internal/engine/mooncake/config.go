package mooncake

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// EnvPath is the environment variable that names the file for Mooncake and vLLM.
const EnvPath = "MOONCAKE_CONFIG_PATH"

// maxBytes bounds the file; real ones have a few hundred bytes.
const maxBytes = 1 << 20

// Errors of this package; test with errors.Is.
var (
	// ErrFile means that the file cannot be read or is not a mooncake.json.
	ErrFile = errors.New("unusable mooncake.json")
	// ErrNotEtcd means that the file is valid, but its metadata server is not etcd.
	ErrNotEtcd = errors.New("the metadata server is not etcd")
)

// Config has the relevant fields of a mooncake.json. Fields that the file does not
// have are empty.
type Config struct {
	MetadataServer string // as written
	Backend        string // "etcd", "redis", "http", ..., "p2p", or "" when no server is named
	Protocol       string // lower case: "rdma", "tcp", ...
	LocalHostname  string // of v0.3
	Master         string // master_server_address

	endpoints       []string // of etcd
	prefill, decode string   // of v0.1 and v0.2
}

// fields has the fields of the formats v0.1, v0.2 and v0.3, and of the store. Fields whose values may be
// numbers or strings are not read.
type fields struct {
	LocalURL            string `json:"local_url"`
	RemoteURL           string `json:"remote_url"`
	PrefillURL          string `json:"prefill_url"`
	DecodeURL           string `json:"decode_url"`
	MetadataServer      string `json:"metadata_server"`
	MetadataBackend     string `json:"metadata_backend"`
	Protocol            string `json:"protocol"`
	LocalHostname       string `json:"local_hostname"`
	MasterServerAddress string `json:"master_server_address"`
}

// Load reads the file at path.
func Load(path string) (Config, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return Config{}, fmt.Errorf("%w: %w", ErrFile, err)
	case !info.Mode().IsRegular():
		return Config{}, fmt.Errorf("%w: %s is not a file", ErrFile, path)
	case info.Size() > maxBytes:
		return Config{}, fmt.Errorf("%w: %s has more than %d bytes", ErrFile, path, maxBytes)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrFile, err)
	}
	c, err := Parse(raw)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Parse reads the text of a mooncake.json of any format.
func Parse(raw []byte) (Config, error) {
	raw = bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf")) // editors on some systems write one
	if trimmed := bytes.TrimSpace(raw); len(trimmed) == 0 || trimmed[0] != '{' {
		return Config{}, fmt.Errorf("%w: it contains no JSON object", ErrFile)
	}
	var f fields
	if err := json.Unmarshal(raw, &f); err != nil {
		return Config{}, fmt.Errorf("%w: %s", ErrFile, explain(raw, err))
	}
	text := strings.TrimSpace
	c := Config{
		MetadataServer: text(f.MetadataServer), Protocol: strings.ToLower(text(f.Protocol)),
		LocalHostname: text(f.LocalHostname), Master: text(f.MasterServerAddress),
		prefill: cmp.Or(text(f.PrefillURL), text(f.LocalURL)), decode: cmp.Or(text(f.DecodeURL), text(f.RemoteURL)),
	}
	return c, c.metadata(text(f.MetadataBackend))
}

// p2pHandshake is the value of metadata_server if nodes exchange metadata directly,
// without a server.
const p2pHandshake = "P2PHANDSHAKE"

// metadata sets Backend and endpoints. A scheme in metadata_server takes precedence
// over metadata_backend; without either the server is etcd.
func (c *Config) metadata(backend string) error {
	server := c.MetadataServer
	if server == "" {
		return nil
	}
	if strings.EqualFold(server, p2pHandshake) {
		c.Backend = "p2p"
		return nil
	}
	if scheme, _, ok := strings.Cut(server, "://"); ok {
		if strings.Contains(scheme, "@") { // not shown: it may be a password
			return fmt.Errorf("%w: metadata_server has an @ in front of ://", ErrFile)
		}
		backend = scheme
	}
	if c.Backend = strings.ToLower(backend); c.Backend == "" {
		c.Backend = "etcd"
	}
	if c.Backend != "etcd" {
		return nil
	}
	// Mooncake accepts commas and semicolons between members.
	for _, part := range strings.FieldsFunc(server, func(r rune) bool { return r == ',' || r == ';' }) {
		part = strings.TrimSpace(part)
		if cut, rest, ok := strings.Cut(part, "://"); ok {
			if !strings.EqualFold(cut, "etcd") {
				return fmt.Errorf("%w: metadata_server names etcd and %s together", ErrFile, instance.Printable(cut, 20))
			}
			part = rest
		}
		if part = strings.TrimRight(part, "/"); part == "" {
			continue
		}
		if strings.Contains(part, "@") { // not shown: it may be a password
			return fmt.Errorf("%w: metadata_server has a user before @: set it by --etcd-username and PD_ETCD_PASSWORD instead", ErrFile)
		}
		address, err := instance.ParseAddress(part)
		if err != nil {
			return fmt.Errorf("%w: metadata_server: %w", ErrFile, err)
		}
		if !slices.Contains(c.endpoints, address) {
			c.endpoints = append(c.endpoints, address)
		}
	}
	if len(c.endpoints) == 0 {
		return fmt.Errorf("%w: metadata_server names no etcd member", ErrFile)
	}
	return nil
}

// Etcd returns host:port of each etcd member. If the metadata server is not etcd, the
// error wraps ErrNotEtcd and names the backend.
func (c *Config) Etcd() ([]string, error) {
	switch c.Backend {
	case "etcd":
		return slices.Clone(c.endpoints), nil
	case "":
		return nil, fmt.Errorf("%w: the file has no metadata_server", ErrNotEtcd)
	case "p2p":
		return nil, fmt.Errorf("%w: with %s the nodes ask each other", ErrNotEtcd, p2pHandshake)
	case "http", "https":
		return nil, fmt.Errorf("%w: %s is Mooncake's own HTTP metadata server", ErrNotEtcd, c.shown())
	}
	return nil, fmt.Errorf("%w: %s is %s", ErrNotEtcd, c.shown(), instance.Printable(c.Backend, 20))
}

// shown returns metadata_server without possible passwords.
func (c *Config) shown() string {
	scheme, rest, ok := strings.Cut(c.MetadataServer, "://")
	if !ok {
		scheme, rest = "", c.MetadataServer
	}
	s := rest[strings.LastIndexByte(rest, '@')+1:]
	if scheme = scheme[strings.LastIndexByte(scheme, '@')+1:]; scheme != "" {
		s = scheme + "://" + s
	}
	return instance.Printable(s, 120)
}

// Host returns the name or address of the node of a role in the file, "" if it has
// none. Wildcard and loopback addresses are returned unchanged.
func (c *Config) Host(role instance.Role) string {
	at := cmp.Or(c.LocalHostname, map[instance.Role]string{instance.Prefill: c.prefill, instance.Decode: c.decode}[role])
	if host, _, err := net.SplitHostPort(at); err == nil {
		return host
	}
	return strings.Trim(at, "[]")
}

// Labels returns the settings to show with an instance.
func (c *Config) Labels() map[string]string {
	out := make(map[string]string)
	for name, value := range map[string]string{
		"mooncake_protocol": c.Protocol, "mooncake_host": c.LocalHostname, "mooncake_master": c.Master,
	} {
		if value != "" && len(value) <= 128 && instance.Printable(value, 0) == value {
			out[name] = value
		}
	}
	return out
}

// explain adds the line number to a JSON error.
func explain(raw []byte, err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind):
		return fmt.Sprintf("line %d: %s must be a text in quotes, not a %s", line(raw, kind.Offset), kind.Field, kind.Value)
	case errors.As(err, &syntax):
		return fmt.Sprintf("line %d: %s", line(raw, syntax.Offset), err)
	}
	return err.Error()
}

func line(raw []byte, offset int64) int {
	return 1 + bytes.Count(raw[:min(max(offset, 0), int64(len(raw)))], []byte("\n"))
}
