package cluster

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Clocks of workers that are a year apart, run backwards and jump at every look decide nothing: the samples are those of one process. What
// a clock is asked for is how long nobody was heard, and whether a second has passed, which Go takes from the monotonic clock; these here are
// read without it. A jump beyond Worker.Wait would be that long a silence if it fell on a question without an answer. Nothing that is sent
// holds a time.
func TestClocksApart(t *testing.T) {
	t.Parallel()
	p, text := tiny(t)
	c := coordinate(t, t.TempDir(), p, text)
	defer c.Close(false)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var looks atomic.Int64
	clocks := []func(look int64) time.Duration{
		func(look int64) time.Duration { return 365 * 24 * time.Hour },
		func(look int64) time.Duration { return -time.Duration(look) * time.Hour },
		func(look int64) time.Duration { return time.Duration(look%2) * 5 * time.Minute },
	}
	var gone []chan error
	for _, clock := range clocks {
		w := &Worker{URL: c.Address(), Open: openTiny, now: func() time.Time { return time.Now().Round(0).Add(clock(looks.Add(1))) }}
		ended := make(chan error, 1)
		go func() { ended <- w.Work(ctx) }()
		gone = append(gone, ended)
	}
	for step := range 6 {
		move(p, uint64(step))
		want, wantLP := sampled(t, p, text, 4*step)
		got, gotLP := sampled(t, c.Policy(), text, 4*step)
		require.Equal(t, want, got)
		require.Equal(t, wantLP, gotLP)
	}
	require.Greater(t, looks.Load(), int64(6))
	require.Equal(t, 24, c.Counts().Accepted)
	cancel()
	for _, ended := range gone {
		require.ErrorIs(t, <-ended, context.Canceled)
	}
	for _, sent := range []any{Spec{}, policyEntry{}, task{}, rollout{}, joining{}, submission{}, reply{}, holder{}} {
		text, err := json.Marshal(sent)
		require.NoError(t, err)
		require.NotRegexp(t, `0001-01-01|"[a-z_]*(time|date|clock|expires)`, string(text), "%T says what time it is", sent)
	}
}
