package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/bind"
	"plumbline/internal/cluster"
	"plumbline/internal/train"
)

// clusterFlags are the flags of a coordinator; cluster= is a key.
type clusterFlags struct {
	security cluster.Security
	listen   string
	blobsAt  string
	blobs    string
	rows     int
}

func bindSecurity(cmd *cobra.Command, s *cluster.Security) {
	cmd.Flags().StringVar(&s.CA, "tls-ca", "", "cluster: file of the certificates that sign the coordinator's; none: those of the system")
	cmd.Flags().StringVar(&s.Credentials, "credentials", "", "cluster: file of NATS credentials, or of the seed of an nkey")
	cmd.Flags().BoolVar(&s.Insecure, "insecure", false, "cluster: accept plaintext and no credentials on other interfaces than loopback")
}

func (f *trainFlags) bindCluster(cmd *cobra.Command) {
	bindSecurity(cmd, &f.cluster.security)
	cmd.Flags().StringVar(&f.cluster.security.Cert, "tls-cert", "", "cluster: file of the certificate of this coordinator")
	cmd.Flags().StringVar(&f.cluster.security.Key, "tls-key", "", "cluster: file of its key")
	cmd.Flags().StringVar(&f.cluster.listen, "listen", "127.0.0.1:4222", "cluster=embedded: host and port of the queue; port 0: any")
	cmd.Flags().StringVar(&f.cluster.blobsAt, "blobs-listen", "", "cluster: host and port of adapters and rollouts over HTTP (default: the host of --listen, any port)")
	cmd.Flags().StringVar(&f.cluster.blobs, "blobs", "", "cluster: a folder that the workers share, in place of HTTP")
	cmd.Flags().IntVar(&f.cluster.rows, "task-rows", 1, "cluster: samples of a task; any number draws the same")
}

// clusterModel is what a worker opens.
type clusterModel struct {
	Name      string     `json:"name"`
	LoRA      train.LoRA `json:"lora"`
	Seed      uint64     `json:"seed"`
	ValueHead bool       `json:"value_head"`
	Int8      bool       `json:"int8"`
	Policy    string     `json:"policy"`
}

// distribute has the samples of a run drawn by workers, if cluster= says so.
func (x *session) distribute(ctx context.Context, where, name string, l train.LoRA, seed uint64, o bind.Options) error {
	if where == train.NoCluster {
		return nil
	}
	if x.lockstep != nil {
		return usageError{"cluster=" + where + " does not go with --lockstep: the samples would be those of one of both"}
	}
	model, err := json.Marshal(clusterModel{name, l, seed, o.ValueHead, o.Int8, x.flags.policy})
	if err != nil {
		return err
	}
	f := x.flags.cluster
	if f.blobs != "" {
		if f.blobs, err = filepath.Abs(f.blobs); err != nil {
			return err
		}
	}
	c, err := cluster.Open(ctx, cluster.Config{URL: where, Listen: f.listen, BlobsAt: f.blobsAt, Blobs: f.blobs, Dir: filepath.Join(x.Run.Path(), "cluster"), Rows: f.rows,
		Security: f.security, Model: model, Policy: x.Policy, Text: x.Tokenizer, Warn: warn})
	if err != nil {
		return clusterError(err)
	}
	fmt.Fprintf(x.Out, "cluster: train worker --url %s\n", c.Address())
	x.Policy = c.Policy()
	release := x.release
	x.release = func() {
		if err := c.Close(x.done); err != nil {
			warn("%v", err)
		}
		release()
	}
	return nil
}

// close releases what the run holds. A deferred call of the field would take the function that stood there before distribute.
func (x *session) close() { x.release() }

// clusterError says what is the user's to mend.
func clusterError(err error) error {
	if cli.Is[*cluster.InsecureError](err) || cli.Is[*cluster.RunningError](err) || cli.Is[*cluster.AddressError](err) {
		return usageError{err.Error()}
	}
	if cli.Is[*cluster.RefusedError](err) {
		return failedError{err.Error()}
	}
	return err
}

func newWorker() *cobra.Command {
	var w cluster.Worker
	var model string
	cmd := &cobra.Command{
		Use:   "worker --url URL [--model DIR]",
		Short: "draw rollouts for a trainer that was started with cluster=",
		Long: `worker draws the rollouts of a trainer that was started with cluster=embedded or cluster=URL, until that run has ended. It opens the model that
the run names; --model says where the same files lie on this machine. A worker with another base, tokenizer or arithmetic is refused, and so is one
whose log-probabilities of fixed texts are not the learner's (exit 1). It waits --wait for a coordinator that is not there, or not there any more
(then exit 3).`,
		Example: `  train worker --url nats://127.0.0.1:4222
  train worker --url tls://head:4222 --credentials worker.nk --tls-ca ca.pem`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if w.URL == "" {
				return usageError{"--url is missing (train worker --help)"}
			}
			if w.Wait <= 0 {
				return usageError{fmt.Sprintf("--wait %v: want a time above 0", w.Wait)}
			}
			w.Say = func(format string, a ...any) { fmt.Fprintf(cmd.OutOrStdout(), format+"\n", a...) }
			w.Open = func(s cluster.Spec) (train.Policy, train.Tokenizer, error) {
				var m clusterModel
				if err := json.Unmarshal(s.Model, &m); err != nil {
					return nil, nil, err
				}
				if model != "" {
					m.Name = model
				}
				x := &session{flags: &trainFlags{policy: m.Policy}, Env: train.Env{Out: cmd.OutOrStdout()}}
				err := x.load(m.Name, m.LoRA, m.Seed, bind.Options{ValueHead: m.ValueHead, Int8: m.Int8})
				return x.Policy, x.Tokenizer, err
			}
			return clusterError(w.Work(cmd.Context()))
		},
	}
	cmd.Flags().StringVar(&w.URL, "url", "", "of NATS, as the trainer prints it")
	cmd.Flags().StringVar(&w.Run, "run", "", "which of several runs on one cluster")
	cmd.Flags().DurationVar(&w.Wait, "wait", 10*time.Minute, "for a coordinator that does not answer: not started yet, or gone")
	cmd.Flags().StringVar(&model, "model", "", "where the model lies here (default: the name that the run has for it)")
	bindSecurity(cmd, &w.Security)
	return cmd
}
