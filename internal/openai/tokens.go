package openai

// TokensTell tells that the KV cache of a request without media follows from the tokens of
// its prompt alone, which it does not with a salt, and that an engine tells them when it
// is asked, which it does on two of the routes.
func (r *Request) TokensTell() bool {
	return (r.Kind == Chat || r.Kind == Completion) && r.last[FieldCacheSalt] == 0
}
