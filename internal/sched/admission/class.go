package admission

// Class is the priority of a request. Lower values go first.
type Class uint8

// The classes.
const (
	Interactive Class = iota
	Default
	Batch
	classes
)

// Classes returns all classes, the highest priority first.
func Classes() []Class { return []Class{Interactive, Default, Batch} }

// String returns the name of the class, as in the header X-Priority.
func (c Class) String() string { return [...]string{"interactive", "default", "batch"}[c] }

// EnginePriority returns vLLM's priority for the class as JSON, where lower values go first; "" is vLLM's
// default, 0.
func (c Class) EnginePriority() string { return [...]string{"-1", "", "1"}[c] }

// ParseClass returns the class of a name.
func ParseClass(name string) (c Class, ok bool) {
	for _, c := range Classes() {
		if c.String() == name {
			return c, true
		}
	}
	return Default, false
}
