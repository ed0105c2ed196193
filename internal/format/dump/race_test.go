package dump

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestConcurrent reads the same steps from several goroutines.
func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	for step := range 4 {
		for rank := range 3 {
			put(t, join(dir, fmt.Sprintf("%d-%d.safetensors", step, rank)), fmt.Sprintf(`{"schema":1,"step":%d,"rank":%d,"options":{"beta":1}}`, step, rank),
				mask("response_mask", "011"), f32("logp_new", float64(10*step+rank), 1, 3))
		}
	}
	r, err := Open(t.Context(), []string{dir})
	require.NoError(t, err)
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for b, err := range r.Batches(t.Context()) {
				if err != nil || b.Token("logp_new")[3] != float64(10*b.Meta.Step+1) {
					t.Errorf("step %v: %v", b, err)
				}
			}
			r.Range(1, 2).Steps()
		})
	}
	wait.Wait()
}
