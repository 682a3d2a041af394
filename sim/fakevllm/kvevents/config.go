// Package kvevents is how an engine publishes what is stored in and removed from its KV cache.
package kvevents

import (
	"encoding/json"
	"strings"
)

// Config is vLLM's --kv-events-config.
type Config struct {
	Enabled        bool    `json:"enable_kv_cache_events"`
	Publisher      string  `json:"publisher"` // "zmq" or "null"; by default zmq if enabled
	Endpoint       string  `json:"endpoint"`  // default "tcp://*:5557"
	ReplayEndpoint *string `json:"replay_endpoint"`
	BufferSteps    int     `json:"buffer_steps"` // default 10000
	HWM            int     `json:"hwm"`          // default 100000
	MaxQueueSize   int     `json:"max_queue_size"`
	Topic          string  `json:"topic"`
}

// filled has vLLM's defaults.
func (k Config) filled() Config {
	if k.Publisher == "" {
		k.Publisher = "null"
		if k.Enabled {
			k.Publisher = "zmq"
		}
	}
	if k.Endpoint == "" {
		k.Endpoint = "tcp://*:5557"
	}
	if k.BufferSteps == 0 {
		k.BufferSteps = 10_000
	}
	if k.HWM == 0 {
		k.HWM = 100_000
	}
	if k.MaxQueueSize == 0 {
		k.MaxQueueSize = 100_000
	}
	return k
}

// ParseConfig reads the JSON of --kv-events-config.
func ParseConfig(text string) (*Config, error) {
	k := new(Config)
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	return k, d.Decode(k)
}
