// Answers fit questions with Volcano's own code: cases as JSON lines on stdin, answers as JSON lines on stdout.
// Written for tests/unit/domain/vectors/make_volcano_fit.py, which says how to build it.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"sort"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"volcano.sh/volcano/pkg/scheduler/api/devices/nvidia/vgpu"
)

type bound struct {
	UID   string `json:"uid"`
	IDs   string `json:"ids"`
	Group string `json:"group"`
}

type question struct {
	Register string  `json:"register"`
	Bound    []bound `json:"bound"`
	Pod      v1.Pod  `json:"pod"`
	Policy   string  `json:"policy"`
}

type card struct {
	UUID   string `json:"uuid"`
	Count  uint   `json:"count"`
	Memory uint   `json:"memory"`
	Type   string `json:"type"`
	Used   [3]int `json:"used"`
}

type answer struct {
	Node   bool    `json:"node"`
	Before []card  `json:"before"`
	After  []card  `json:"after"`
	IDs    string  `json:"ids"`
	Score  float64 `json:"score"`
	Error  string  `json:"error"`
}

func cards(devices *vgpu.GPUDevices) []card {
	found := []card{}
	order := []int{}
	for index := range devices.Device {
		order = append(order, index)
	}
	sort.Ints(order)
	for _, index := range order {
		d := devices.Device[index]
		found = append(found, card{d.UUID, d.Number, d.Memory, d.Type, [3]int{int(d.UsedNum), int(d.UsedMem), int(d.UsedCore)}})
	}
	return found
}

func decide(q question) answer {
	one := resource.MustParse("1")
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node", Annotations: map[string]string{"volcano.sh/node-vgpu-register": q.Register}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			"volcano.sh/vgpu-number": one, "volcano.sh/vgpu-cores": one, "volcano.sh/vgpu-memory": one}},
	}
	devices := vgpu.NewGPUDevices("node", node)
	if devices == nil {
		return answer{}
	}
	for _, b := range q.Bound {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: b.UID, Namespace: "default", UID: types.UID(b.UID),
			Annotations: map[string]string{"volcano.sh/vgpu-ids-new": b.IDs}}}
		if b.Group != "" {
			pod.Annotations["scheduling.k8s.io/group-name"] = b.Group
		}
		devices.AddResource(pod)
	}
	before := cards(devices)
	ids, score, err := vgpu.Decide(&q.Pod, devices, q.Policy)
	a := answer{Node: true, Before: before, After: cards(devices), IDs: ids, Score: score}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

func main() {
	vgpu.VGPUEnable = true
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var q question
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			panic(err)
		}
		if err := out.Encode(decide(q)); err != nil {
			panic(err)
		}
	}
}
