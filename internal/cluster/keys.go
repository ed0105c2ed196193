package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"plumbline/internal/rng"
)

func streamName(run string) string { return "PLUMBLINE_" + run }
func bucketName(run string) string { return "plumbline_" + run }

// describe makes the keys that say what the run is and which policy it has.
func (c *Coordinator) describe(ctx context.Context) error {
	kv, err := c.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: bucketName(c.spec.Run)})
	if err != nil {
		return err
	}
	if err := c.hold(ctx, kv); err != nil {
		return err
	}
	c.mu.Lock()
	spec, err1 := json.Marshal(c.spec)
	entry, err2 := json.Marshal(c.entry)
	c.mu.Unlock()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for key, value := range map[string][]byte{"spec": spec, "policy": entry} {
		if now, err := kv.Get(ctx, key); err == nil && string(now.Value()) == string(value) {
			continue
		}
		if _, err := kv.Put(ctx, key, value); err != nil {
			return err
		}
	}
	return nil
}

// fill makes the queue and the keys if they are not there, and puts every open task into it that it lacks. With fresh what lies in
// the queue is of a call before, and goes.
func (c *Coordinator) fill(ctx context.Context, fresh bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := c.describe(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	open := map[string][]byte{}
	for id, t := range c.tasks {
		open[id], _ = json.Marshal(t)
	}
	c.mu.Unlock()
	stream, err := c.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: streamName(c.spec.Run), Subjects: []string{c.subject("task.*")}, Retention: jetstream.WorkQueuePolicy,
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true})
	if err != nil {
		return err
	}
	if fresh {
		if err := stream.Purge(ctx); err != nil {
			return err
		}
	}
	if _, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.AckWait, MaxDeliver: -1, MaxAckPending: -1}); err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(c.subject("task.*")))
	if err != nil {
		return err
	}
	for id, text := range open {
		subject := c.subject("task." + id)
		if info.State.Subjects[subject] > 0 {
			continue
		}
		if _, err := c.js.Publish(ctx, subject, text); err != nil && !strings.Contains(err.Error(), "per subject") {
			return err
		}
		if !fresh {
			c.mu.Lock()
			c.counts.Refilled++
			c.mu.Unlock()
		}
	}
	return nil
}

// draw draws a task that a worker said it could not: if nobody can, the error is that of one process.
func (c *Coordinator) draw(ctx context.Context, t *task) error {
	ids, logp, err := c.Config.Policy.Sample(ctx, t.Prompts, t.Sampling, rng.Keyed(t.Seed), t.First, t.EOS, nil)
	if err != nil {
		return err
	}
	text, err := json.Marshal(rollout{t.Policy, t.Seed, t.First, t.Samples, ids, logp})
	if err != nil {
		return err
	}
	name, err := c.ledger.blobs.put(ctx, text)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Local++
	c.accept(t, &rollout{t.Policy, t.Seed, t.First, t.Samples, ids, logp}, name)
	return c.fault
}
