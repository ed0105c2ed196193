package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A run has one coordinator: the one whose name stands under the key "coordinator". JetStream puts what is written to a key in one
// order, and a write that names the revision before it fails if there is another one: of two coordinators that start at the same
// moment one gets the key, and of two that find a dead holder as well. Whoever holds it answers under its id, so that a holder is
// dead if nobody listens there, whatever any clock says. A holder that was cut off and replaced sees it at its next look at the keys.

// holder is the value of that key.
type holder struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

const leaseKey = "coordinator"

// introduce has the coordinator answer for itself, by its id and, for workers, as whoever is there.
func (c *Coordinator) introduce() error {
	id := make([]byte, 8)
	rand.Read(id)
	host, _ := os.Hostname()
	c.me = holder{hex.EncodeToString(id), fmt.Sprintf("process %d on %s", os.Getpid(), host)}
	_, err := c.conn.Subscribe(c.subject("who."+c.me.ID), func(m *nats.Msg) { m.Respond([]byte(c.me.Name)) })
	return errors.Join(err, c.conn.Flush())
}

// hold takes the run, or finds that this coordinator still has it. Of a run that another one has, the error is a *[RunningError].
func (c *Coordinator) hold(ctx context.Context, kv jetstream.KeyValue) error {
	mine, err := json.Marshal(c.me)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		e, err := kv.Get(ctx, leaseKey)
		var write func() (uint64, error)
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			write = func() (uint64, error) { return kv.Create(ctx, leaseKey, mine) }
		case err != nil:
			return err
		case string(e.Value()) == string(mine):
			c.holds = true
			return nil
		default:
			var other holder
			if err := json.Unmarshal(e.Value(), &other); err != nil {
				return fmt.Errorf("key %s of %s: %w", leaseKey, bucketName(c.spec.Run), err)
			}
			if c.holds {
				return &RunningError{c.spec.Run, other.Name + ", which took it over while this one was cut off"}
			}
			if _, err = c.conn.RequestWithContext(ctx, c.subject("who."+other.ID), nil); err == nil {
				return &RunningError{c.spec.Run, other.Name}
			} else if errors.Is(err, context.DeadlineExceeded) {
				return &RunningError{c.spec.Run, other.Name + ", which does not answer; if it is gone, NATS finds that out in a few minutes"}
			} else if !errors.Is(err, nats.ErrNoResponders) {
				return err
			}
			write = func() (uint64, error) { return kv.Update(ctx, leaseKey, mine, e.Revision()) }
		}
		if _, err = write(); err == nil {
			c.holds = true
			return nil
		}
		if api := (&jetstream.APIError{}); !errors.Is(err, jetstream.ErrKeyExists) && !(errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence) {
			return err
		} // another one was faster: it is asked for
	}
	return ctx.Err()
}

// alone refuses a run that another coordinator has.
func (c *Coordinator) alone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := c.introduce()
	if err == nil {
		var kv jetstream.KeyValue
		if kv, err = c.js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: bucketName(c.spec.Run)}); err == nil {
			err = c.hold(ctx, kv)
		}
	}
	var running *RunningError
	if err != nil && !errors.As(err, &running) {
		return fmt.Errorf("%s: %w", c.URL, err)
	}
	if err != nil {
		return err
	}
	_, err = c.conn.Subscribe(c.subject("who"), func(m *nats.Msg) { m.Respond([]byte(c.me.Name)) })
	return err
}
