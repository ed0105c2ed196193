package benchmarks

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"plumbline/accel/cpu"
	"plumbline/internal/bind"
	"plumbline/internal/cluster"
	"plumbline/internal/rng"
	"plumbline/internal/train"
)

// workerEnv makes the test binary a worker of the cluster at that address.
const workerEnv = "BENCHMARK_WORKER"

func TestMain(m *testing.M) {
	address := os.Getenv(workerEnv)
	if address == "" {
		os.Exit(m.Run())
	}
	w := cluster.Worker{URL: address, Open: func(cluster.Spec) (train.Policy, train.Tokenizer, error) { return rolloutPolicy() }}
	if err := w.Work(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// rolloutPolicy is the embedded model under an adapter that is not zero, in float64.
func rolloutPolicy() (train.Policy, train.Tokenizer, error) {
	m, extra, err := bind.Open(bind.TinyGPTJ, 1)
	if err != nil {
		return nil, nil, err
	}
	text, err := bind.NewText(m)
	if err != nil {
		return nil, nil, err
	}
	l := train.LoRA{R: 8, Alpha: 16, Targets: []string{"q_proj", "v_proj"}}
	o := bind.Options{Seed: 3, Extra: extra, Fingerprint: m.Fingerprint, PEFT: bind.AdapterConfig(bind.TinyGPTJ, l)}
	if o.Adapter, err = bind.NewAdapter(m.Base.Config, l.R, l.Alpha, l.Targets, 1); err != nil {
		return nil, nil, err
	}
	p, err := bind.NewLanguage(m.Base, o)
	return p, text, err
}

// taskRows are the samples of a task: the coordinator takes a few milliseconds for each task, however long it is.
const taskRows = 8

// crew is a coordinator with workers, each a process of one thread.
type crew struct {
	c       *cluster.Coordinator
	policy  train.Policy
	text    train.Tokenizer
	workers []*exec.Cmd
	calls   int
}

func hireCrew(b *testing.B, n int) *crew {
	w := &crew{}
	var err error
	if w.policy, w.text, err = rolloutPolicy(); err != nil {
		b.Fatal(err)
	}
	w.c, err = cluster.Open(context.Background(), cluster.Config{URL: cluster.Embedded, Listen: "127.0.0.1:0", Dir: b.TempDir(), Policy: w.policy, Text: w.text, Model: json.RawMessage(`{}`), Rows: taskRows})
	if err != nil {
		b.Fatal(err)
	}
	for range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), workerEnv+"="+w.c.Address(), "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		w.workers = append(w.workers, cmd)
	}
	b.Cleanup(func() {
		for _, cmd := range w.workers {
			cmd.Process.Kill()
			cmd.Wait()
		}
		w.c.Close(false)
	})
	for w.c.Counts().Joined < n { // a call may be over before a worker has opened its model
		w.draw(b, 4)
	}
	return w
}

// draw has so many samples drawn and returns the wall time and the CPU time of the workers.
func (w *crew) draw(b *testing.B, samples int) (wall, worked time.Duration) {
	prompt := w.text.Encode("prompt")
	in := train.Batch{Prompt: len(prompt)}
	for range samples {
		in.Rows++
		in.IDs = append(in.IDs, prompt...)
		in.Real = append(in.Real, slices.Repeat([]bool{true}, len(prompt))...)
	}
	used := func() (sum time.Duration) {
		for _, cmd := range w.workers {
			sum += processTime(cmd.Process.Pid)
		}
		return sum
	}
	w.calls++
	w.policy.Params()[0].Data[0] += 1.0 / 1024 // another policy: its hand-over is part of a step
	before, start := used(), time.Now()
	how := train.Sampling{Temperature: 1, TopP: 1, MaxNew: 48, MinNew: 48}
	if _, _, err := w.c.Policy().Sample(context.Background(), in, how, rng.New(7, uint64(w.calls)), 0, w.text.EOS(), nil); err != nil {
		b.Fatal(err)
	}
	return time.Since(start), used() - before
}

// processTime is the CPU time of a process in ticks of 10 ms; 0 where the system does not say.
func processTime(pid int) time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// BenchmarkCluster has one and two workers of one thread draw 128 samples in turn, as many as a step of 16 prompts with 8 completions asks for. gain is the wall time of one by that of two, medians of
// the rounds; it means something where two cores are free, so the load stands beside it. What CPU time says whatever the load: with C1 and
// C2 the CPU time of one and of two workers and S that of the coordinator, one worker takes C1 at least, and two with their coordinator
// cannot take less than (C2+S)/2 on two cores. bound is 2·C1/(C2+S): what two cores allow if nobody ever waits.
func BenchmarkCluster(b *testing.B) {
	const samples = 128
	crews := []*crew{hireCrew(b, 1), hireCrew(b, 2)}
	var walls, worked [2][]float64
	var own [2]float64
	b.ResetTimer()
	for b.Loop() {
		for k, w := range crews {
			before := cpu.Time()
			wall, used := w.draw(b, samples)
			walls[k], worked[k] = append(walls[k], wall.Seconds()), append(worked[k], used.Seconds())
			own[k] += (cpu.Time() - before).Seconds()
		}
	}
	sum := func(x []float64) (s float64) {
		for _, v := range x {
			s += v
		}
		return s
	}
	n := float64(b.N)
	b.ReportMetric(samples/median(walls[0]), "one/s")
	b.ReportMetric(samples/median(walls[1]), "two/s")
	b.ReportMetric(median(walls[0])/median(walls[1]), "gain")
	c1, c2, s := sum(worked[0])/n, sum(worked[1])/n, own[1]/n
	b.ReportMetric(1000*c1/samples, "cpu1-ms/sample")
	b.ReportMetric(1000*c2/samples, "cpu2-ms/sample")
	b.ReportMetric(1000*s/samples, "coordinator-ms/sample")
	b.ReportMetric(2*c1/(c2+s), "bound")
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		if load, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64); err == nil {
			b.ReportMetric(load, "load")
		}
	}
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}
