package loadgen

// chunk is one event of a streamed answer, as much of it as is checked. It is
// used again for every event of a stream.
type chunk struct {
	text    []byte // of completions' "text" or chat's "delta.content", decoded
	finish  []byte // finish_reason, empty while null
	choices int
	isError bool
	usage   bool // the event has a usage object
	prompt  int
	output  int
	cursor  cursor
}

func (k *chunk) reset() {
	*k = chunk{text: k.text[:0], finish: k.finish[:0], cursor: cursor{key: k.cursor.key}}
}

// parse reads one event. The fields of a chunk that have no bearing on its
// being right (id, created, logprobs, ...) are passed over.
func (k *chunk) parse(data []byte) error {
	k.reset()
	c := &k.cursor
	c.b = data
	defer func() { c.b = nil }() // the event belongs to the caller
	err := c.object(func(key []byte) error {
		switch string(key) {
		case "choices":
			return c.array(func(int) error {
				k.choices++
				return k.choice(c)
			})
		case "usage":
			if c.null() {
				return nil
			}
			k.usage = true
			return k.counts(c)
		case "error":
			k.isError = !c.null()
			if k.isError {
				return c.skip()
			}
			return nil
		}
		return c.skip()
	})
	if err == nil && c.peek() != 0 {
		err = errJSON
	}
	return err
}

func (k *chunk) choice(c *cursor) error {
	return c.object(func(key []byte) error {
		var err error
		switch string(key) {
		case "text":
			return k.appendText(c)
		case "delta":
			return c.object(func(key []byte) error {
				if string(key) == "content" {
					return k.appendText(c)
				}
				return c.skip()
			})
		case "finish_reason":
			if c.null() {
				return nil
			}
			k.finish, err = c.text(k.finish)
			return err
		}
		return c.skip()
	})
}

func (k *chunk) appendText(c *cursor) (err error) {
	if c.null() {
		return nil
	}
	k.text, err = c.text(k.text)
	return err
}

func (k *chunk) counts(c *cursor) error {
	return c.object(func(key []byte) (err error) {
		switch string(key) {
		case "prompt_tokens":
			k.prompt, err = c.integer()
		case "completion_tokens":
			k.output, err = c.integer()
		default:
			err = c.skip()
		}
		return err
	})
}
