package accel_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel"
	"plumbline/accel/cpu"
)

func names(vs []accel.Variant) (all []string) {
	for _, v := range vs {
		all = append(all, v.Name)
	}
	return all
}

func used(op string) string {
	for _, v := range accel.Variants(op) {
		if v.Used {
			return v.Name
		}
	}
	return ""
}

// The variants here return a number each, so that a call says which one ran.
func TestVariants(t *testing.T) {
	op := accel.New("test.Choice", func() int { return 0 }, func(f func() int) error {
		if f() == 3 {
			return errors.New("3 is wrong")
		}
		return nil
	})
	op.Add("avx512vnni", cpu.None, func() int { return 3 })
	op.Add("avx2", cpu.None, func() int { return 1 })
	op.AddUntried("amx", cpu.None, func() int { return 4 })
	op.Add("avx512", cpu.None, func() int { return 2 })
	require.Contains(t, accel.Ops(), "test.Choice")
	all := accel.Variants("test.Choice")
	require.Equal(t, []string{"generic", "avx2", "avx512", "avx512vnni", "amx"}, names(all))
	require.Equal(t, "self-test: 3 is wrong", all[3].Missing)
	require.True(t, all[3].Broken)
	require.False(t, all[2].Broken)
	require.Equal(t, 2, op.Func()(), "the best that passes its self-test and was tried")
	require.True(t, all[4].Untried)

	release, err := accel.Force("test.Choice", "amx")
	require.NoError(t, err)
	require.Equal(t, 4, op.Func()())
	release()
	require.Equal(t, 2, op.Func()())
	_, err = accel.Force("test.Choice", "avx512vnni")
	require.ErrorContains(t, err, "3 is wrong")
	_, err = accel.Force("test.Choice", "sse")
	require.Error(t, err)
	_, err = accel.Force("test.None", "avx2")
	require.Error(t, err)

	require.NoError(t, accel.Limit("avx2"))
	require.Equal(t, 1, op.Func()())
	require.NoError(t, accel.Limit("generic"))
	require.Equal(t, "generic", used("test.Choice"))
	require.Error(t, accel.Limit("sse"))
	require.NoError(t, accel.Limit("amx"))
	require.Equal(t, 2, op.Func()())

	var saw []int
	accel.Each("test.Choice", func(v accel.Variant) {
		if v.Missing == "" {
			saw = append(saw, op.Func()())
		}
	})
	require.Equal(t, []int{0, 1, 2, 4}, saw)
	require.Panics(t, func() { accel.Each("test.Choice", func(accel.Variant) { panic("x") }) })
	require.Equal(t, 2, op.Func()(), "every variant is released, after a panic too")
	require.Panics(t, func() { accel.New("test.Choice", func() int { return 0 }, nil) })
	require.Panics(t, func() { op.Add("sse", cpu.None, func() int { return 9 }) })
}

// What is not faster here is there, and not chosen.
func TestVariantThatIsNotWorthIt(t *testing.T) {
	op := accel.New("test.Worth", func() int { return 0 }, func(func() int) error { return nil })
	op.AddWhere("avx2", cpu.None, func() bool { return true }, func() int { return 1 })
	op.AddWhere("avx512", cpu.None, func() bool { return false }, func() int { return 2 })
	require.Equal(t, 1, op.Func()())
	release, err := accel.Force("test.Worth", "avx512")
	require.NoError(t, err)
	require.Equal(t, 2, op.Func()())
	release()
	require.Equal(t, 1, op.Func()())
}

func TestMissingFeature(t *testing.T) {
	op := accel.New("test.Feature", func() int { return 0 }, func(func() int) error { return nil })
	op.Add("amx", cpu.AMX, func() int { return 1 })
	v := accel.Variants("test.Feature")[1]
	require.Equal(t, cpu.Missing(cpu.AMX), v.Missing)
	require.Equal(t, v.Missing == "", v.Used)
	require.False(t, v.Broken)
}

func TestCheckMatrix(t *testing.T) {
	accel.CheckMatrix("x", 0, 0, 5, 0)
	accel.CheckMatrix("x", 0, 5, 0, 0)
	accel.CheckMatrix("x", 8, 2, 3, 5)
	for _, c := range [][4]int{{7, 2, 3, 5}, {9, 2, 3, 2}, {9, -1, 3, 3}, {9, 3, -3, 3}} {
		require.Panics(t, func() { accel.CheckMatrix("x", c[0], c[1], c[2], c[3]) }, "%v", c)
	}
}
