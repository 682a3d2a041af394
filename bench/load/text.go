package load

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
)

// textCheck checks what the strict simulator says: the text, the finish reason
// and the end, not every byte, as ids and times differ. It costs far more than
// the other checks; a load with it measures nothing but whether it is right.
type textCheck struct {
	req     *answer.Request
	onToken func()

	text, finish string
	got          []byte
	buf          []byte
	finished     string
	done         bool
	broken       error
}

func newTextCheck(req *answer.Request, onToken func()) (*textCheck, error) {
	c := &textCheck{req: req, onToken: onToken}
	_, err := fakevllm.ExpectedAnswers(true, req.Body, 0)
	return c, err
}

func (c *textCheck) Begin(uint64) {
	// The request has its tag already.
	answers, err := fakevllm.ExpectedAnswers(true, c.req.Body, 0)
	c.got, c.buf, c.finished, c.done, c.broken = c.got[:0], c.buf[:0], "", false, err
	if err == nil {
		c.text, c.finish = answers[0].Text, answers[0].FinishReason
	}
}

func (c *textCheck) Write(p []byte) error {
	if c.broken != nil {
		return c.broken
	}
	c.buf = append(c.buf, p...)
	if !c.req.Shape.Stream {
		return nil
	}
	for {
		event, rest, ok := bytes.Cut(c.buf, []byte("\n\n"))
		if !ok {
			return nil
		}
		if err := c.event(bytes.TrimPrefix(event, []byte("data: "))); err != nil {
			return err
		}
		c.buf = append(c.buf[:0], rest...)
	}
}

// said is what matters of a chunk or of a whole answer.
type said struct {
	Choices []struct {
		Delta, Message struct {
			Content string `json:"content"`
		}
		Finish string `json:"finish_reason"`
	} `json:"choices"`
}

func (c *textCheck) event(data []byte) error {
	if c.done {
		return fmt.Errorf("%w: %.80q behind the end", answer.ErrWrong, data)
	}
	if string(data) == "[DONE]" {
		c.done = true
		return nil
	}
	var s said
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%w: %.160q: %w", answer.ErrWrong, data, err)
	}
	return c.add(&s, false)
}

func (c *textCheck) add(s *said, whole bool) error {
	for _, choice := range s.Choices {
		piece := choice.Delta.Content
		if whole {
			piece = choice.Message.Content
		}
		if piece != "" {
			c.got = append(c.got, piece...)
			if !bytes.HasPrefix([]byte(c.text), c.got) {
				return fmt.Errorf("%w: the text began %.160q instead of %.160q", answer.ErrWrong, c.got, c.text)
			}
			if !whole && c.onToken != nil {
				c.onToken()
			}
		}
		c.finished += choice.Finish
	}
	return nil
}

func (c *textCheck) End() error {
	if !c.req.Shape.Stream {
		var s said
		if err := json.Unmarshal(c.buf, &s); err != nil {
			return fmt.Errorf("%w: %.160q: %w", answer.ErrWrong, c.buf, err)
		}
		if err := c.add(&s, true); err != nil {
			return err
		}
		c.done, c.buf = true, c.buf[:0]
	}
	if !c.done || len(c.buf) > 0 || string(c.got) != c.text || c.finished != c.finish {
		return fmt.Errorf("%w: it ended with %d of %d bytes of text, finish reason %q instead of %q, end marker %v", answer.ErrWrong,
			len(c.got), len(c.text), c.finished, c.finish, c.done)
	}
	return nil
}
