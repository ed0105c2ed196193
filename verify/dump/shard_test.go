package dump_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// written is the notes of shards, each record a text of JSON.
type written map[string][][]byte

func (w written) put(r dump.Record) error {
	text, err := json.Marshal(r)
	w[r.Key] = append(w[r.Key], text)
	return err
}

func (w written) Records(key string) ([]dump.Record, error) {
	list := make([]dump.Record, len(w[key]))
	for i, text := range w[key] {
		if err := json.Unmarshal(text, &list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// merged judges a run in n shards.
func merged(t *testing.T, run dump.Source, o dump.Options, n int) *dump.Report {
	t.Helper()
	notes := written{}
	for i := range n {
		bad, err := dump.Shard(context.Background(), run, o, i, n, notes.put)
		require.NoError(t, err)
		require.Nil(t, bad)
	}
	r, err := dump.Merge(context.Background(), run, o, notes)
	require.NoError(t, err)
	return r
}

// The report of shards is that of one process, on healthy and on broken runs, with a declared convention and without.
func TestShardsAreOneRun(t *testing.T) {
	dirs, err := filepath.Glob("../../golden/dumps/*/*/*")
	require.NoError(t, err)
	judged := 0
	for k, dir := range dirs {
		if k%(9*cases.Every) > 0 {
			continue
		}
		run, err := dumpfile.Open(context.Background(), []string{dir})
		if err != nil || len(run.Steps()) < 2 {
			continue
		}
		profiles := []string{""}
		if k%(27*cases.Every) == 0 {
			profiles = append(profiles, dump.NoProfile)
		}
		for _, profile := range profiles {
			o := dump.Options{Profile: profile, Brief: true, FirstStep: k%3 == 0}
			want, err := dump.Judge(context.Background(), run, o)
			require.NoError(t, err)
			n := 1 + (k+judged)%3
			require.Equal(t, want, merged(t, run, o, n), "%s, profile %q, %d shards", dir, profile, n)
			judged++
		}
	}
	require.GreaterOrEqual(t, judged, 3)
}

// Of a healthy run the merge reads some steps for its results, and not all; of notes that were not taken it reads the steps.
func TestMergeReadsWhatNotesDoNotHold(t *testing.T) {
	steps := rollouts(t)
	want, err := dump.Judge(context.Background(), steps, dump.Options{Profile: "trl-grpo@1.16"})
	require.NoError(t, err)
	for n := 1; n <= 5; n++ {
		require.Equal(t, want, merged(t, steps, dump.Options{Profile: "trl-grpo@1.16"}, n), fmt.Sprint(n))
	}
	one := written{}
	_, err = dump.Shard(context.Background(), steps, dump.Options{Profile: "trl-grpo@1.16"}, 1, 2, one.put)
	require.NoError(t, err)
	got, err := dump.Merge(context.Background(), steps, dump.Options{Profile: "trl-grpo@1.16"}, one)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// What a rule across steps says of a step does not hang on which process saw the steps before it.
func TestShardsKnowTheStepsBefore(t *testing.T) {
	stale := generations(4, func(rollout, _ int, x map[string][]float64) {
		if rollout > 1 {
			for i, lp := range x["logp_new"] {
				x["logp_old"][i] = lp + 0.4*float64(i%7-3)
			}
		}
	})
	follows := generations(4, func(_, update int, x map[string][]float64) {
		if update == 0 {
			copy(x["logp_ref"], x["logp_old"])
		}
	})
	for name, run := range map[string]dump.Batches{"pairs": preferences(4, true), "healthy pairs": preferences(4, false), "stale old log-probs": stale, "reference": follows} {
		o := dump.Options{Set: []string{"kl.beta=0.1"}, Selection: check.Selection{Select: []string{"across/*"}}}
		want, err := dump.Judge(context.Background(), run, o)
		require.NoError(t, err)
		for n := cases.Every; n <= 3; n++ {
			require.Equal(t, want, merged(t, run, o, n), "%s in %d", name, n)
		}
	}
}
