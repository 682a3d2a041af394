package forward

import "testing"

func TestBodyClasses(t *testing.T) {
	t.Parallel()
	last := -1
	for n := int64(minPooledBody); n <= largeBody; n += 1 + n/97 {
		class, size, ok := bodyClass(n)
		if !ok || int64(size) < n || int64(size) > n+n/bodySteps+1 {
			t.Fatalf("%d bytes: class %d of %d bytes, %v", n, class, size, ok)
		}
		if class < last || class >= len(bodyPools) {
			t.Fatalf("%d bytes: class %d after %d of %d", n, class, last, len(bodyPools))
		}
		last = class
		// A buffer goes back to where it came from.
		if again, same, ok := bodyClass(int64(size)); !ok || again != class || same != size {
			t.Fatalf("a buffer of %d bytes from class %d goes back to %d (%d bytes)", size, class, again, same)
		}
	}
	for _, n := range []int64{-1, 0, 1, minPooledBody - 1, largeBody + 1, 1 << 40} {
		if _, _, ok := bodyClass(n); ok {
			t.Errorf("%d bytes are pooled", n)
		}
	}
	if _, _, ok := bodyClass(largeBody); !ok {
		t.Error("the largest of these sizes is not pooled")
	}
}
