package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"plumbline/accel/cuda"
	"plumbline/accel/cuda/ptxsim"
	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/op"
	"plumbline/verify/report"
)

// The variants of the kernels in accel/cuda.
const (
	onSimulator = "sim"  // their PTX in the simulator, in all of its schedules
	onGPU       = "cuda" // a GPU
)

var deviceVariants = []string{onSimulator, onGPU}

// simulatedWork is the largest product that is simulated, in multiply-adds of its tiles.
const simulatedWork = 64 * 64 * 2200

// simulatedCases of an op take seconds where those of the processor's kernels take milliseconds.
const simulatedCases = 12

// onDevice is a device with the ops on it.
type onDevice struct {
	variant, name string
	host          *cuda.Host
	recorder      *cuda.Recorder // of the first device
	counted       *cuda.Simulated
	ops           []op.Op
	close         func() error
}

// openDevice opens the device of a variant; for cuda the error wraps cuda.ErrNoDevice where there is none.
func openDevice(variant string) (*onDevice, error) {
	d := &onDevice{variant: variant, close: func() error { return nil }}
	var devices []cuda.Device
	most := 0
	if variant == onSimulator {
		for _, o := range ptxsim.Schedules {
			devices = append(devices, cuda.Simulator(o, 0))
		}
		d.counted, most = devices[0].(*cuda.Simulated), simulatedWork
	} else {
		g, err := cuda.Open("", 0)
		if err != nil {
			return nil, err
		}
		devices, d.close = []cuda.Device{g}, g.Close
	}
	d.name = devices[0].Name()
	d.recorder = &cuda.Recorder{Device: devices[0]}
	devices[0] = d.recorder
	d.host = cuda.NewHost(devices...)
	d.ops = op.OnDevice(d.host, most)
	return d, nil
}

// kernelRow is what one kernel did in the cases of an op.
type kernelRow struct {
	kernel string
	cases  int
	worst  float64
	stats  ptxsim.Stats
}

// deviceCase is one case of a certificate.
type deviceCase struct {
	Op, Case string
	Kernels  []string
	Elements int
	Worst    float64  `json:"err_over_bound"`
	Failed   string   `json:",omitempty"`
	SHA256   string   // of all outputs
	Outputs  [][]byte `json:",omitempty"` // where they are small
}

// certificate is what a device computed, for machines that have none: the outputs of named cases under named kernels.
type certificate struct {
	Format  string
	Variant string
	Device  string
	Made    string
	PTX     map[string]string // sha256 of each module
	Cases   []deviceCase
}

const (
	certificateFormat = "plumbline device certificate 1"
	keptOutputs       = 1 << 14 // bytes of a case's outputs that a certificate holds; of larger ones it has the hash
	mostCertificate   = 1 << 28
)

// judgeDevice runs the ops on a device. It returns the rows of ops and of kernels, and the cases.
func (j *opsJob) judgeDevice(cmd *cobra.Command, d *onDevice, r *report.Report) (rows, kernels [][]string, cases []deviceCase, err error) {
	for _, o := range d.ops {
		if !j.pattern.MatchString(o.Name) {
			continue
		}
		u, here, err := j.shards.unit(o.Name, d.variant, func() (u opUnit, err error) {
			u, done, err := j.onDevice(cmd.Context(), d, o)
			cases = append(cases, done...)
			return u, err
		})
		if err != nil {
			return nil, nil, nil, err
		}
		if here {
			r.Results, rows, kernels = append(r.Results, u.Result), append(rows, u.Rows...), append(kernels, u.Kernels...)
		}
	}
	return rows, kernels, cases, nil
}

// onDevice runs the cases of an op on a device.
func (j *opsJob) onDevice(ctx context.Context, d *onDevice, o op.Op) (u opUnit, cases []deviceCase, err error) {
	sum, byKernel := new(op.Report), map[string]*kernelRow{}
	for i := range j.cases {
		if err := ctx.Err(); err != nil {
			return u, nil, err
		}
		c := o.Case(j.seed, i)
		if j.one != nil {
			if i > 0 {
				break
			}
			c = *j.one
		}
		var before map[string]ptxsim.Stats
		if d.counted != nil {
			before = maps.Clone(d.counted.Stats)
		}
		d.recorder.Outputs = nil
		done := o.CheckCase(c)
		sum.Add(done)
		launched := d.host.Launched()
		slices.Sort(launched)
		launched = slices.Compact(launched)
		for _, name := range launched {
			k := byKernel[name]
			if k == nil {
				k = &kernelRow{kernel: name}
				byKernel[name] = k
			}
			k.cases++
			k.worst = max(k.worst, done.Tally.Worst.Ratio)
			if d.counted != nil {
				k.stats.Add(d.counted.Stats[name].Less(before[name]))
			}
		}
		cases = append(cases, deviceCase{Op: o.Name, Case: c.String(), Kernels: launched, Elements: done.Compared(), Worst: done.Tally.Worst.Ratio, Failed: done.Reason,
			SHA256: outputsHash(d.recorder.Outputs), Outputs: small(d.recorder.Outputs)})
	}
	result := j.result(o, d.variant, sum)
	for _, name := range slices.Sorted(maps.Keys(byKernel)) {
		k := byKernel[name]
		row := []string{o.Name, name, fmt.Sprint(k.cases), fmt.Sprintf("%.2g", k.worst), "", "", ""}
		if d.counted != nil {
			row[4], row[5], row[6] = fmt.Sprint(k.stats.Instructions), fmt.Sprint(k.stats.Sectors), fmt.Sprint(k.stats.BankConflicts)
			result.Facts = append(result.Facts, check.Fact{Name: name + " warp instructions", Value: float64(k.stats.Instructions)},
				check.Fact{Name: name + " sectors", Value: float64(k.stats.Sectors)}, check.Fact{Name: name + " bank conflicts", Value: float64(k.stats.BankConflicts)})
		}
		u.Kernels = append(u.Kernels, row)
	}
	u.Result, u.Ran = result, true
	u.Rows = [][]string{{o.Name, d.variant, result.Verdict.String(), fmt.Sprint(sum.Cases), fmt.Sprint(sum.Compared()), fmt.Sprintf("%.2g", sum.Tally.Worst.Ratio), "", result.Reason}}
	return u, cases, nil
}

func outputsHash(outputs [][]byte) string {
	h := sha256.New()
	for _, o := range outputs {
		fmt.Fprintln(h, len(o))
		h.Write(o)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// small returns outputs that a certificate holds, nil where they are too large.
func small(outputs [][]byte) [][]byte {
	n := 0
	for _, o := range outputs {
		n += len(o)
	}
	if n > keptOutputs {
		return nil
	}
	return outputs
}

// record writes a certificate, compressed.
func record(path string, d *onDevice, cases []deviceCase) error {
	c := certificate{Format: certificateFormat, Variant: d.variant, Device: d.name, Made: time.Now().UTC().Format(time.DateOnly), PTX: map[string]string{}, Cases: cases}
	for _, name := range cuda.Kernels() {
		hash, err := cuda.PTXHash(name)
		if err != nil {
			return err
		}
		c.PTX[name] = hash
	}
	return format.WriteFile(path, func(w io.Writer) error {
		z := gzip.NewWriter(w)
		return errors.Join(json.NewEncoder(z).Encode(c), z.Close())
	})
}

// readCertificate reads what record wrote.
func readCertificate(path string) (*certificate, error) {
	text, err := format.ReadFile(path, mostCertificate)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, format.Malformed(path, "", "no certificate: %v", err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, mostCertificate))
	if err != nil {
		return nil, format.Malformed(path, "", "a certificate that ends early: %v", err)
	}
	var c certificate
	if err := json.Unmarshal(plain, &c); err != nil || c.Format != certificateFormat {
		return nil, format.Malformed(path, "", "no certificate of the form %q", certificateFormat)
	}
	if len(c.Cases) == 0 {
		return nil, format.Malformed(path, "", "a certificate without cases")
	}
	return &c, nil
}

// replay judges a certificate here: the reference and the bound are computed anew for the inputs of every case, and the outputs that the device gave
// are held against them. Where the bits are promised the simulator's are compared, too. A case of kernels that have changed since is void.
func (j *opsJob) replay(cmd *cobra.Command, path string, r *report.Report) (rows [][]string, head string, err error) {
	cert, err := readCertificate(path)
	if err != nil {
		return nil, "", err
	}
	player := &cuda.Playback{}
	played := map[string]op.Op{}
	for _, o := range op.OnDevice(cuda.NewHost(player), 0) {
		played[o.Name] = o
	}
	sim, err := openDevice(onSimulator)
	if err != nil {
		return nil, "", err
	}
	type line struct {
		sum                        op.Report
		stored, same, void, broken int
		why                        string
	}
	lines, order := map[string]*line{}, []string(nil)
	for _, c := range cert.Cases {
		if err := cmd.Context().Err(); err != nil {
			return nil, "", err
		}
		o, known := played[c.Op]
		at, err := op.ParseCase(c.Case)
		if !known || err != nil {
			return nil, "", format.Malformed(path, c.Op, "no op and case of this program: %s", c.Case)
		}
		l := lines[c.Op]
		if l == nil {
			l = &line{}
			lines[c.Op], order = l, append(order, c.Op)
		}
		if why := changed(cert, c); why != "" {
			l.void++
			l.why = why
			continue
		}
		if c.Failed != "" {
			l.broken++
			l.why = "failed on the device: " + c.Failed
			continue
		}
		for i := range sim.ops {
			if sim.ops[i].Name != c.Op || !sim.takes(i, at) {
				continue
			}
			sim.recorder.Outputs = nil
			sim.ops[i].CheckCase(at)
			sim.host.Launched()
			if outputsHash(sim.recorder.Outputs) == c.SHA256 {
				l.same++
			} else if c.Outputs == nil && exactOps[c.Op] {
				l.broken++
				l.why = fmt.Sprintf("case %s: other bits than the simulator's, where all are promised", c.Case)
			}
		}
		if c.Outputs == nil {
			continue
		}
		if outputsHash(c.Outputs) != c.SHA256 {
			l.broken++
			l.why = fmt.Sprintf("case %s: the outputs are not those of their hash", c.Case)
			continue
		}
		l.stored++
		player.Outputs = c.Outputs
		done := o.CheckCase(at)
		l.sum.Add(done)
	}
	for _, name := range order {
		l := lines[name]
		result := j.result(played[name], cert.Variant+" (certificate)", &l.sum)
		switch {
		case l.broken > 0:
			result.Verdict, result.Reason = check.Fail, l.why
		case l.void > 0:
			result.Verdict, result.Reason = check.Undetermined, fmt.Sprintf("void: %s; record it again", l.why)
		}
		result.Facts = append(result.Facts, check.Fact{Name: "cases with outputs", Value: float64(l.stored)}, check.Fact{Name: "cases with the simulator's bits", Value: float64(l.same)})
		r.Results = append(r.Results, result)
		rows = append(rows, []string{name, result.Verdict.String(), fmt.Sprint(l.sum.Cases), fmt.Sprint(l.sum.Compared()), fmt.Sprintf("%.2g", l.sum.Tally.Worst.Ratio), fmt.Sprint(l.same), result.Reason})
	}
	return rows, fmt.Sprintf("recorded on %s (%s) on %s, judged here", cert.Device, cert.Variant, cert.Made), nil
}

// exactOps are those whose every bit is promised.
var exactOps = map[string]bool{"i8.QuantizeRows": true, "i8.Gemm": true, "i8.GemmScaled": true, "i8.Embedding": true, "f32.Move": true}

// takes reports whether the simulator takes a case: the record of a GPU has larger ones.
func (d *onDevice) takes(i int, c op.Case) bool {
	return d.ops[i].Takes == nil || d.ops[i].Takes(c)
}

// changed says which module of a case is not the one that was recorded.
func changed(cert *certificate, c deviceCase) string {
	for _, kernel := range c.Kernels {
		module, err := cuda.ModuleOf(kernel)
		if err != nil {
			return err.Error()
		}
		if now, err := cuda.PTXHash(module); err != nil || now != cert.PTX[module] {
			return "module " + module + " has changed since"
		}
	}
	return ""
}
