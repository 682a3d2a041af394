package instance

import "strings"

// Warning returns a problem of an instance that serves, "" if there is none. connector is
// the dialect of instances whose record names none.
func (i *Instance) Warning(connector string) string {
	if i.Record.Connector != "" {
		connector = i.Record.Connector
	}
	if i.Record.Transfer != TransferNIXL || connector == "" || strings.Contains(strings.ToLower(connector), TransferNIXL) {
		return ""
	}
	return "its engine transfers KV caches by NIXL, but the proxy uses the connector " + Printable(connector, 40) +
		": no cache is transferred, and decode computes each prompt again; set --connector nixl"
}
