package schema

// EncodeValue encodes an override or a pending add as the Store does.
func EncodeValue(v any) ([]byte, error) { return Encode(v) }
