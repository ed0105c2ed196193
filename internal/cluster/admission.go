package cluster

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ticket is what a worker shows that its copy of a policy passed the canary of this coordinator.
func (c *Coordinator) ticket(worker, policy string) string {
	h := hmac.New(sha256.New, c.secret)
	fmt.Fprintf(h, "%q %q", worker, policy)
	return hex.EncodeToString(h.Sum(nil))
}

func (c *Coordinator) reject(reason, format string, a ...any) reply {
	c.counts.Rejected[reason]++
	return reply{Reason: reason, Detail: fmt.Sprintf(format, a...)}
}

// join admits a worker to the policy of the run if it is the same model, and its song to the canary has the bits of the learner's.
func (c *Coordinator) join(text []byte) reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	var j joining
	switch err := json.Unmarshal(text, &j); {
	case err != nil:
		return c.reject(Malformed, "%v", err)
	case j.Variant != c.spec.Variant:
		return c.reject(WrongVariant, "the worker computes with %s, the run with %s: other bits", j.Variant, c.spec.Variant)
	case j.Base != c.spec.Base:
		return c.reject(WrongBase, "the worker has base %.12s, the run %.12s", j.Base, c.spec.Base)
	case j.Tokenizer != c.spec.Tokenizer:
		return c.reject(WrongText, "the worker has tokenizer %.12s, the run %.12s", j.Tokenizer, c.spec.Tokenizer)
	case j.Policy != c.entry.SHA256:
		return c.reject(Stale, "the policy of the run is %.12s", c.entry.SHA256)
	case !slices.Equal(j.Canary, c.song):
		r := c.reject(WrongCanary, "log-probabilities of fixed texts differ from the learner's by up to %.3g nats, want 0: the adapter is missing, stale or another one", apart(j.Canary, c.song))
		c.warn("worker %s gets no work: %s", j.Worker, r.Detail)
		return r
	}
	c.counts.Joined++
	return reply{Ticket: c.ticket(j.Worker, j.Policy)}
}

// restore writes the blob of the run's policy again, which a worker found missing or corrupted. The masters are those of the blob as
// long as samples are being drawn.
func (c *Coordinator) restore([]byte) reply {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tasks) == 0 {
		return reply{}
	}
	name, err := c.ledger.blobs.put(context.Background(), encodePolicy(c.Config.Policy.Params()))
	if err == nil && name != c.entry.SHA256 {
		err = errors.New("the masters have changed while samples were drawn")
	}
	if err != nil {
		return c.reject(BadBlob, "%v", err)
	}
	c.counts.Restored++
	return reply{}
}

// submit takes a rollout, or says why not.
func (c *Coordinator) submit(text []byte) reply {
	var s submission
	if err := json.Unmarshal(text, &s); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.reject(Malformed, "%v", err)
	}
	var data []byte
	var lost error
	if s.Failed == "" {
		data, lost = c.ledger.blobs.get(context.Background(), s.Blob)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Policy != c.entry.SHA256 {
		version, known := c.ledger.version[s.Policy]
		if !known {
			return c.reject(UnknownPolicy, "%.12s is no policy of this run", s.Policy)
		}
		c.counts.Staleness = max(c.counts.Staleness, c.entry.Version-version)
		return c.reject(Stale, "version %d, the run is at %d", version, c.entry.Version)
	}
	if !hmac.Equal([]byte(s.Ticket), []byte(c.ticket(s.Worker, s.Policy))) {
		return c.reject(NotAdmitted, "worker %.80q has not passed the canary of this policy", s.Worker)
	}
	t := c.tasks[s.Task]
	switch {
	case t == nil && c.done[s.Task]:
		return c.reject(Duplicate, "task %.12s is done", s.Task)
	case t == nil:
		return c.reject(UnknownTask, "%.12s", s.Task)
	case s.Failed != "":
		c.warn("worker %s cannot draw task %.12s: %s", s.Worker, s.Task, s.Failed)
		c.failed = append(c.failed, s.Task)
		c.wake()
		return reply{}
	case lost != nil:
		return c.reject(BadBlob, "%v", lost)
	}
	var r rollout
	if err := json.Unmarshal(data, &r); err != nil {
		return c.reject(Malformed, "%v", err)
	}
	if err := r.fits(t); err != nil {
		return c.reject(Malformed, "%v", err)
	}
	c.accept(t, &r, s.Blob)
	if c.fault != nil {
		return reply{Reason: BadBlob, Detail: c.fault.Error()}
	}
	return reply{}
}

// fits reports how a rollout is not what its task asked for.
func (r *rollout) fits(t *task) error {
	if r.Policy != t.Policy || r.Seed != t.Seed || r.First != t.First || !slices.Equal(r.Samples, t.Samples) || len(r.IDs) != len(t.Samples) || len(r.LogProbs) != len(t.Samples) {
		return errors.New("the rollout is of another task")
	}
	for i, ids := range r.IDs {
		if len(ids) == 0 || len(ids) > t.Sampling.MaxNew || len(ids) != len(r.LogProbs[i]) {
			return fmt.Errorf("sample %d has %d tokens and %d log-probabilities, want 1 to %d of each", t.First+i, len(ids), len(r.LogProbs[i]), t.Sampling.MaxNew)
		}
		for j, id := range ids {
			if lp := r.LogProbs[i][j]; id < 0 || !(lp <= 1e-6) || math.IsInf(lp, 0) || id == t.EOS && j < len(ids)-1 {
				return fmt.Errorf("sample %d, token %d: id %d with log-probability %g", t.First+i, j, id, lp)
			}
		}
	}
	return nil
}

// accept writes a rollout down, then counts it.
func (c *Coordinator) accept(t *task, r *rollout, blob string) {
	if c.tasks[t.ID] == nil {
		return
	}
	if err := c.ledger.add(r, blob); err != nil {
		c.fault = err
		c.wake()
		return
	}
	for i, id := range r.Samples {
		c.ids[id], c.logp[id] = r.IDs[i], r.LogProbs[i]
	}
	delete(c.tasks, t.ID)
	c.done[t.ID] = true
	c.counts.Accepted += len(r.Samples)
	c.wake()
}

func (c *Coordinator) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}
