// SPDX-License-Identifier: Apache-2.0

package node

import "testing"

func TestOnlyTheClustersRulesAreRemoved(t *testing.T) {
	for name, tc := range map[string]struct{ saved, want string }{
		"nothing of ours": {
			saved: "*nat\n:POSTROUTING ACCEPT [0:0]\n:CNI-aaa - [0:0]\n" +
				"-A POSTROUTING -m comment --comment \"name: \\\"other\\\" id: \\\"1\\\"\" -j CNI-aaa\nCOMMIT\n",
		},
		"chains of Kubernetes and what leads to them": {
			saved: "# Generated\n*filter\n:INPUT ACCEPT [1:2]\n:KUBE-FIREWALL - [0:0]\n:KUBE-NODEPORTS - [0:0]\n" +
				"-A INPUT -j KUBE-FIREWALL\n-A INPUT -p tcp -j ACCEPT\n-A KUBE-FIREWALL -j KUBE-NODEPORTS\n-A KUBE-FIREWALL -j DROP\nCOMMIT\n# Completed\n",
			want: "*filter\n-D INPUT -j KUBE-FIREWALL\n-F KUBE-FIREWALL\n-F KUBE-NODEPORTS\n-X KUBE-FIREWALL\n-X KUBE-NODEPORTS\nCOMMIT\n",
		},
		"chains of our network's pods": {
			saved: "*mangle\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n*nat\n:POSTROUTING ACCEPT [0:0]\n:CNI-aaa - [0:0]\n:CNI-bbb - [0:0]\n" +
				"-A POSTROUTING -s 10.244.0.2/32 -m comment --comment \"name: \\\"ic-cluster\\\" id: \\\"1\\\"\" -j CNI-aaa\n" +
				"-A POSTROUTING -s 10.88.0.2/32 -m comment --comment \"name: \\\"podman\\\" id: \\\"2\\\"\" -j CNI-bbb\n" +
				"-A CNI-aaa -d 10.244.0.0/24 -m comment --comment \"name: \\\"ic-cluster\\\" id: \\\"1\\\"\" -j ACCEPT\n" +
				"-A CNI-aaa ! -d 224.0.0.0/4 -m comment --comment \"name: \\\"ic-cluster\\\" id: \\\"1\\\"\" -j MASQUERADE\nCOMMIT\n",
			want: "*nat\n-D POSTROUTING -s 10.244.0.2/32 -m comment --comment \"name: \\\"ic-cluster\\\" id: \\\"1\\\"\" -j CNI-aaa\n" +
				"-F CNI-aaa\n-X CNI-aaa\nCOMMIT\n",
		},
		"ports of our pods": {
			saved: "*nat\n:CNI-DN-aaa - [0:0]\n:CNI-HOSTPORT-DNAT - [0:0]\n" +
				"-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: \\\"ic-cluster\\\" id: \\\"1\\\"\" -m multiport --dports 80 -j CNI-DN-aaa\nCOMMIT\n",
			want: "*nat\n-D CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: \\\"ic-cluster\\\" id: \\\"1\\\"\" -m multiport --dports 80 -j CNI-DN-aaa\n" +
				"-F CNI-DN-aaa\n-X CNI-DN-aaa\nCOMMIT\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := removal(tc.saved); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}
