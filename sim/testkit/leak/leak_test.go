package leak

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMain(m *testing.M) { Main(m) }

func held(end <-chan struct{}, ended chan<- struct{}) {
	<-end
	close(ended)
}

func TestFind(t *testing.T) {
	end, ended := make(chan struct{}), make(chan struct{})
	go held(end, ended)
	if err := find(2); err == nil || !strings.Contains(err.Error(), "leak.held") {
		t.Errorf("a goroutine that stays: %v", err)
	}
	close(end)
	<-ended
	assert.NoError(t, Find())
}
