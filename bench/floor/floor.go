package floor

import "errors"

// Options says where it stands.
type Options struct {
	// Listen is the IPv4 address to listen on; port 0 takes a free one.
	Listen string
	// Prefill and Decode are the IPv4 addresses of the instances, at least one of
	// each.
	Prefill, Decode []string
}

// ErrOptions is wrapped by complaints about Options.
var ErrOptions = errors.New("no floor like that")

// ErrSurprise is wrapped by whatever ends Serve before its context does.
var ErrSurprise = errors.New("the floor has no way to deal with that")
