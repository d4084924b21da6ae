// SPDX-License-Identifier: Apache-2.0

package kernelcheck_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/kernelcheck"
)

// runCheck runs a check among Python files instead of the engine's.
func runCheck(t *testing.T, strict bool, files map[string]string) (exit int, verdict string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 to run the check with")
	}
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := kernelcheck.Container(&corev1.Container{}, strict, false)
	log := filepath.Join(dir, "log")
	command := exec.CommandContext(t.Context(), python, c.Command[1:]...)
	command.Dir = dir
	command.Env = append(os.Environ(), "PYTHONPATH="+dir, "KERNEL_CHECK_LOG="+log)
	for _, v := range c.Env {
		command.Env = append(command.Env, v.Name+"="+v.Value)
	}
	_ = command.Run() // the exit code says it
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return command.ProcessState.ExitCode(), string(text)
}

// library returns the path of one that can be loaded.
func library(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"/lib/*/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0]
		}
	}
	t.Skip("no library to load")
	return ""
}

func TestCheck(t *testing.T) {
	loadable, err := os.ReadFile(library(t))
	if err != nil {
		t.Fatal(err)
	}
	image := func(edits map[string]string) map[string]string {
		files := map[string]string{
			"torch.py": "", "lmcache/__init__.py": "raise RuntimeError('imported')", "lmcache/c_ops.cpython-312-x86_64-linux-gnu.so": string(loadable),
			"vllm/__init__.py": "", "vllm/_C_stable_libtorch.py": "",
		}
		for name, text := range edits {
			if files[name] = text; text == "-" {
				delete(files, name)
			}
		}
		return files
	}
	for name, tc := range map[string]struct {
		files      map[string]string
		want       string
		alsoStrict bool
	}{
		"all is there":             {image(nil), "OK", true},
		"an older vLLM":            {image(map[string]string{"vllm/_C_stable_libtorch.py": "-", "vllm/_C.py": ""}), "OK", false},
		"no LMCache":               {image(map[string]string{"lmcache/__init__.py": "-", "lmcache/c_ops.cpython-312-x86_64-linux-gnu.so": "-"}), "FAIL: lmcache is not installed", false},
		"LMCache without kernels":  {image(map[string]string{"lmcache/c_ops.cpython-312-x86_64-linux-gnu.so": "-"}), "FAIL: lmcache has no c_ops library", false},
		"kernels that do not load": {image(map[string]string{"lmcache/c_ops.cpython-312-x86_64-linux-gnu.so": "x"}), "FAIL: OSError: ", false},
		"no PyTorch":               {image(map[string]string{"torch.py": "raise ImportError('libtorch is not there')"}), "FAIL: ImportError: libtorch is not there", true},
		"no vLLM":                  {image(map[string]string{"vllm/__init__.py": "-", "vllm/_C_stable_libtorch.py": "-"}), "FAIL: ModuleNotFoundError: No module named 'vllm", false},
		"vLLM without kernels":     {image(map[string]string{"vllm/_C_stable_libtorch.py": "-"}), "FAIL: ModuleNotFoundError: No module named 'vllm._C'", false},
		"kernels of another build": {image(map[string]string{"vllm/_C_stable_libtorch.py": "raise ImportError('undefined symbol: x\\ny')"}), "FAIL: ImportError: undefined symbol: x y", false},
		"something else is not there": {
			image(map[string]string{"vllm/_C_stable_libtorch.py": "import absent_dependency", "vllm/_C.py": ""}), "FAIL: ModuleNotFoundError: No module named 'absent_dependency'", false,
		},
		"kernels that crash":     {image(map[string]string{"torch.py": "import os; os.kill(os.getpid(), 11)"}), "FAIL: loading the kernels ended with signal 11", false},
		"kernels that exit":      {image(map[string]string{"torch.py": "import os; os._exit(0)"}), "FAIL: loading the kernels ended the process", false},
		"a check that is killed": {image(map[string]string{"torch.py": "import os; os.kill(os.getpid(), 9)"}), "ERROR: the check was killed, out of memory perhaps", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			modes := []bool{false}
			if tc.alsoStrict {
				modes = append(modes, true)
			}
			for _, strict := range modes {
				exit, verdict := runCheck(t, strict, tc.files)
				if !strings.HasPrefix(verdict, tc.want) || tc.want == "OK" && verdict != "OK" {
					t.Errorf("verdict %q, want %q", verdict, tc.want)
				}
				if (exit == 1) != (strict && verdict != "OK") {
					t.Errorf("strict %v: exit %d with %q", strict, exit, verdict)
				}
			}
		})
	}
}

func TestWanted(t *testing.T) {
	engine := func(limits corev1.ResourceList) *corev1.Container {
		return &corev1.Container{Resources: corev1.ResourceRequirements{Limits: limits}}
	}
	with := engine(corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")})
	none := engine(corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")})
	for mode, want := range map[v1alpha1.KernelCheckMode][3]bool{
		v1alpha1.KernelCheckAuto: {true, false, false}, v1alpha1.KernelCheckReportOnly: {true, true, true},
		v1alpha1.KernelCheckStrict: {true, true, true}, v1alpha1.KernelCheckOff: {false, false, false},
	} {
		for i, e := range []*corev1.Container{with, none, engine(nil)} {
			if got := kernelcheck.Wanted(mode, e); got != want[i] {
				t.Errorf("%s, engine %d: %v, want %v", mode, i, got, want[i])
			}
		}
	}
}

func TestContainer(t *testing.T) {
	engine := &corev1.Container{
		Name: "vllm", Image: "vllm:1", ImagePullPolicy: corev1.PullNever, Command: []string{"vllm"}, Args: []string{"serve"}, WorkingDir: "/w",
		Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "KERNEL_CHECK_STRICT", Value: "x"}}, VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}},
		Resources:     corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2"), "cpu": resource.MustParse("8")}},
		LivenessProbe: &corev1.Probe{},
	}
	was := engine.DeepCopy()
	got := kernelcheck.Container(engine, true, false)
	if !cmp.Equal(was, engine) {
		t.Errorf("the engine changed: %s", cmp.Diff(was, engine))
	}
	got.Command = got.Command[:2]
	want := corev1.Container{
		Name: "lmcache-kernel-check", Image: "vllm:1", ImagePullPolicy: corev1.PullNever, Command: []string{"python3", "-c"}, WorkingDir: "/w",
		Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "KERNEL_CHECK_STRICT", Value: "1"}}, VolumeMounts: engine.VolumeMounts,
		Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")},
			Requests: corev1.ResourceList{
				"nvidia.com/gpu": resource.MustParse("2"), "cpu": resource.MustParse("50m"), "memory": resource.MustParse("256Mi"),
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("check (-want +got):\n%s", diff)
	}
	if guaranteed := kernelcheck.Container(engine, false, true); !cmp.Equal(guaranteed.Resources, engine.Resources) {
		t.Errorf("a Guaranteed pod's check has %v", guaranteed.Resources)
	}
}

func TestJudge(t *testing.T) {
	over := func(message string, exit int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message, ExitCode: exit, Reason: "Error"}}
	}
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	status := func(state corev1.ContainerState) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: kernelcheck.ContainerName, State: state}
	}
	ok, failed, fault, pending := status(over("OK", 0)), status(over("FAIL: no symbol", 0)), status(over("ERROR: killed", 0)), status(waiting("PodInitializing"))
	looping := status(waiting("CrashLoopBackOff"))
	looping.LastTerminationState = over("FAIL: no symbol", 1)
	again := status(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	again.LastTerminationState = over("FAIL: no symbol", 1)
	for name, tc := range map[string]struct {
		statuses []corev1.ContainerStatus
		want     string
	}{
		"no pod":                           {nil, ""},
		"no check":                         {[]corev1.ContainerStatus{{Name: "other", State: over("OK", 0)}}, ""},
		"all load":                         {[]corev1.ContainerStatus{ok, ok}, "KernelsHealthy: 2 engines load the compiled parts of LMCache and vLLM"},
		"one failed":                       {[]corev1.ContainerStatus{ok, fault, pending, failed}, "KernelLoadFailed: 1 engines cannot load the compiled parts of LMCache or vLLM: e3: no symbol"},
		"one did not work":                 {[]corev1.ContainerStatus{ok, pending, fault}, "KernelCheckError: 1 engines could not be checked: e2: killed"},
		"one is not done":                  {[]corev1.ContainerStatus{ok, pending}, "KernelCheckPending: 1 engines are not checked yet: e1"},
		"one that keeps an engine waiting": {[]corev1.ContainerStatus{ok, looping}, "strict KernelLoadFailed: 1 engines cannot load the compiled parts of LMCache or vLLM: e1: no symbol"},
		"one that is done anew":            {[]corev1.ContainerStatus{again}, "KernelCheckPending: 1 engines are not checked yet: e0"},
		"one without a word":               {[]corev1.ContainerStatus{status(over("", 137))}, "KernelCheckError: 1 engines could not be checked: e0: Error with exit code 137"},
		"one that cannot start":            {[]corev1.ContainerStatus{status(waiting("CreateContainerError"))}, "KernelCheckError: 1 engines could not be checked: e0: CreateContainerError"},
	} {
		t.Run(name, func(t *testing.T) {
			var pods []*corev1.Pod
			for i, s := range tc.statuses {
				pods = append(pods, &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "e" + string(rune('0'+i))}, Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{s}},
				})
			}
			v, any := kernelcheck.Judge(pods)
			got := v.Reason + ": " + v.Message
			if v.Strict {
				got = "strict " + got
			}
			if !any {
				got = ""
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}
