// What ns-3's Python can't schedule: outages of a cable, and senders over warm connections.

#include <algorithm>
#include "ns3/error-model.h"
#include "ns3/node.h"
#include "ns3/packet.h"
#include "ns3/simulator.h"
#include "ns3/socket.h"

// Lose all packets of a cable from one instant to another.
void moefabric_outage(ns3::Ptr<ns3::ErrorModel> model, double from_s, double until_s) {
    model->Disable();
    ns3::Simulator::Schedule(ns3::Seconds(from_s), &ns3::ErrorModel::Enable, model);
    ns3::Simulator::Schedule(ns3::Seconds(until_s), &ns3::ErrorModel::Disable, model);
}

// Writes to a socket whatever fits, and the rest when there is room again.
class MoefabricSender : public ns3::Object {
  public:
    ns3::Ptr<ns3::Socket> socket;
    uint64_t left = 0;
    void Connect(ns3::Address remote) { socket->Connect(remote); }
    void Fill(ns3::Ptr<ns3::Socket>, uint32_t) {
        while (left > 0) {
            uint64_t room = std::min<uint64_t>(socket->GetTxAvailable(), 1 << 20);
            int sent = room ? socket->Send(ns3::Create<ns3::Packet>(std::min(left, room))) : 0;
            if (sent <= 0) return;
            left -= sent;
        }
    }
    void Add(uint64_t bytes) {
        left += bytes;
        Fill(socket, 0);
    }
};

// Open a connection, carry the first bytes at once, and the others from start_s on.
void moefabric_warm_sender(ns3::Ptr<ns3::Node> node, ns3::Address local, ns3::Address remote,
                           uint64_t first, uint64_t bytes, double start_s) {
    auto sender = ns3::CreateObject<MoefabricSender>();
    auto factory = ns3::TypeId::LookupByName("ns3::TcpSocketFactory");
    sender->socket = ns3::Socket::CreateSocket(node, factory);
    sender->socket->Bind(local);
    sender->socket->SetSendCallback(ns3::MakeCallback(&MoefabricSender::Fill, sender));
    sender->left = first;
    // Queue disciplines are ready when the simulation has begun.
    ns3::Simulator::Schedule(ns3::MicroSeconds(1), &MoefabricSender::Connect, sender, remote);
    ns3::Simulator::Schedule(ns3::Seconds(start_s), &MoefabricSender::Add, sender, bytes);
}
