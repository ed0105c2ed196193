package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"plumbline/internal/format"
	"plumbline/internal/rundir"
)

// ledger is RUN/cluster: what was accepted, so that it is neither lost nor drawn again.
//
//	run              the name of the run in NATS
//	policies.jsonl   the policies in the order of their first use
//	rollouts.jsonl   the accepted rollouts, by their blobs
//	blobs/           the rollouts and the policy that samples are drawn from, by sha256
type ledger struct {
	dir      string
	run      string
	blobs    folder
	rollouts *rundir.Log
	policies *rundir.Log
	version  map[string]int    // of a policy
	held     map[string]bool   // policies whose blob may be there
	at       map[string]string // blob of a sample
}

func openLedger(dir string, b folder) (*ledger, error) {
	if err := format.OwnDir(dir); err != nil {
		return nil, err
	}
	l := &ledger{dir: dir, blobs: b, version: map[string]int{}, held: map[string]bool{}, at: map[string]string{}}
	text, err := format.ReadOwn(dir, "run", 64)
	if errors.Is(err, fs.ErrNotExist) {
		id := make([]byte, 8)
		rand.Read(id)
		text = []byte(hex.EncodeToString(id))
		err = format.WriteOwn(dir, "run", func(w io.Writer) error { _, err := w.Write(text); return err })
	}
	if err != nil {
		return nil, err
	}
	if _, err := hex.DecodeString(string(text)); err != nil || len(text) != 16 {
		return nil, format.Malformed(filepath.Join(dir, "run"), "", "is no name of a run")
	}
	l.run = string(text)
	if l.policies, err = rundir.OpenLog(filepath.Join(dir, "policies.jsonl")); err != nil {
		return nil, err
	}
	if l.rollouts, err = rundir.OpenLog(filepath.Join(dir, "rollouts.jsonl")); err != nil {
		return nil, err
	}
	var line struct {
		Policy, Blob string
		Samples      []string
	}
	if err := eachLine(dir, "policies.jsonl", &line, func() { l.version[line.Policy], l.held[line.Policy] = len(l.version), true }); err != nil {
		return nil, err
	}
	return l, eachLine(dir, "rollouts.jsonl", &line, func() {
		for _, id := range line.Samples {
			l.at[id] = line.Blob
		}
	})
}

// eachLine reads the lines of a log.
func eachLine(dir, name string, line any, do func()) error {
	text, err := format.ReadOwn(dir, name, 1<<30)
	if err != nil {
		return err
	}
	in := bufio.NewScanner(bytes.NewReader(text))
	in.Buffer(nil, 1<<26)
	for n := 1; in.Scan(); n++ {
		if err := json.Unmarshal(in.Bytes(), line); err != nil {
			return format.Malformed(filepath.Join(dir, name), fmt.Sprintf("line %d", n), "%v", err)
		}
		do()
	}
	return in.Err()
}

// policy keeps the blob of a policy and returns its version. It is named before its blob is there, so that every blob has a name.
func (l *ledger) policy(ctx context.Context, blob []byte) (sha string, version int, err error) {
	sha = hash(blob)
	version, known := l.version[sha]
	if !known {
		version = len(l.version)
		if err := l.policies.Append(rundir.Field{Key: "policy", Value: sha}, rundir.Field{Key: "version", Value: version}); err != nil {
			return "", 0, err
		}
		l.version[sha] = version
	}
	l.held[sha] = true
	_, err = l.blobs.put(ctx, blob)
	return sha, version, err
}

// dropPolicies removes the blobs of all policies but one. None of them is needed again: a run that goes on from a checkpoint writes the
// blob of the checkpoint's masters anew, and a worker that asks for an older policy is told of the present one.
func (l *ledger) dropPolicies(but string) error {
	for sha := range l.held {
		if sha == but {
			continue
		}
		if err := l.blobs.remove(sha); err != nil {
			return err
		}
		delete(l.held, sha)
	}
	return nil
}

// add keeps a rollout whose blob is there.
func (l *ledger) add(r *rollout, blob string) error {
	if err := l.rollouts.Append(rundir.Field{Key: "policy", Value: r.Policy}, rundir.Field{Key: "samples", Value: r.Samples}, rundir.Field{Key: "blob", Value: blob}); err != nil {
		return err
	}
	for _, id := range r.Samples {
		l.at[id] = blob
	}
	return nil
}

// find returns a sample that was accepted before, nil if there is none or if its blob is missing or corrupted: it is drawn again.
func (l *ledger) find(ctx context.Context, id string, read map[string]*rollout) (ids []int, logp []float64) {
	name, known := l.at[id]
	if !known {
		return nil, nil
	}
	r, tried := read[name]
	if !tried {
		if data, err := l.blobs.get(ctx, name); err == nil {
			r = &rollout{}
			if json.Unmarshal(data, r) != nil {
				r = nil
			}
		}
		read[name] = r
	}
	if r == nil {
		delete(l.at, id)
		return nil, nil
	}
	for i, s := range r.Samples {
		if s == id && i < len(r.IDs) && i < len(r.LogProbs) {
			return r.IDs[i], r.LogProbs[i]
		}
	}
	return nil, nil
}

func (l *ledger) close() error { return errors.Join(l.policies.Close(), l.rollouts.Close()) }
