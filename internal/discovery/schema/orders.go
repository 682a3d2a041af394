package schema

// The values of Order.Do.
const (
	OrderRestore = "restore"
	OrderForget  = "forget"
)

// Order is the JSON value of the key Layout.Kept.
type Order struct {
	V      int      `json:"v"`
	Do     string   `json:"do"`             // restore or forget
	Keys   []string `json:"keys,omitempty"` // role/host:port; none: everything
	By     string   `json:"by,omitempty"`
	Reason string   `json:"reason,omitempty"`
	// Earlier has the former orders to forget, oldest first, for proxies that have missed them.
	// Writers of older releases omit them.
	Earlier []Order `json:"earlier,omitempty"`
	// Revision is the mod_revision of an order in Earlier.
	Revision int64 `json:"revision,omitempty"`
}
