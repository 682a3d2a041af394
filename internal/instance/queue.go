package instance

import "strings"

// ListedQueue is the queue of one model in a proxy, as /status shows it.
type ListedQueue struct {
	Model string `json:"model"` // see QueueName
	// Mode is observe or on. With observe no request waits; PredictedWait is for the engines' queues.
	Mode    string         `json:"mode"`
	Waiting map[string]int `json:"waiting"`        // requests, by class
	Keys    map[string]int `json:"keys,omitempty"` // requests, by the name of the API key; "" for keys without a name
	Bytes   int64          `json:"bytes"`          // of the bodies of waiting requests
	// PredictedWait is the wait in seconds that a request of class default would have, Oldest the wait
	// in seconds of the oldest request.
	PredictedWait float64 `json:"predicted_wait"`
	Oldest        float64 `json:"oldest"`
	// Saturation is the saturation of each role; from 1 on, requests wait.
	Saturation map[Role]float64 `json:"saturation"`
	Refused    int64            `json:"refused"` // requests, since the queue was made
	Samples    int              `json:"samples"` // of the prediction
	Share      float64          `json:"share"`   // this proxy's share of the fleet's capacity
	Full       bool             `json:"full"`    // every engine of a role reports a queue, or a full KV cache
}

// QueueName returns the name of the queue of a model, or of its instances with these labels. The models of
// targets with labels have no braces.
func QueueName(model string, labels Selector) string {
	if len(labels) == 0 {
		return model
	}
	return model + "{" + labels.String() + "}"
}

// QueuedModel returns the model in the name of a queue.
func QueuedModel(name string) string {
	model, _, _ := strings.Cut(name, "{")
	return model
}

// Merge adds the requests and bytes of another queue, and keeps the longest waits and the highest
// saturation of both. The maps of q must not be nil.
func (q *ListedQueue) Merge(other *ListedQueue) {
	for class, n := range other.Waiting {
		q.Waiting[class] += n
	}
	for name, n := range other.Keys {
		q.Keys[name] += n
	}
	for role, is := range other.Saturation {
		q.Saturation[role] = max(q.Saturation[role], is)
	}
	q.Bytes += other.Bytes
	q.PredictedWait, q.Oldest = max(q.PredictedWait, other.PredictedWait), max(q.Oldest, other.Oldest)
}

// OthersLoad is the load of an engine by other proxies: legs in flight, prompt tokens that it has to
// compute, and tokens of prompts in its KV cache.
type OthersLoad struct{ InFlight, Waiting, Held float64 }
