//! The calls of etcd's API, by name.

use super::cluster::{Cluster, Refused, Reply};
use super::proto::*;

type Answer<T> = Result<Reply<T>, Refused>;

impl Cluster {
    pub(crate) async fn range(&self, range: RangeRequest) -> Answer<RangeResponse> {
        self.ask("/etcdserverpb.KV/Range", range).await
    }

    pub(crate) async fn delete(&self, delete: DeleteRangeRequest) -> Answer<DeleteRangeResponse> {
        self.ask("/etcdserverpb.KV/DeleteRange", delete).await
    }

    pub(crate) async fn txn(&self, txn: TxnRequest) -> Answer<TxnResponse> {
        self.ask("/etcdserverpb.KV/Txn", txn).await
    }

    pub(crate) async fn put(&self, put: PutRequest) -> Answer<PutResponse> {
        self.ask("/etcdserverpb.KV/Put", put).await
    }

    pub(crate) async fn grant(&self, ttl: i64) -> Answer<LeaseGrantResponse> {
        let ask = LeaseGrantRequest { ttl };
        self.ask("/etcdserverpb.Lease/LeaseGrant", ask).await
    }

    pub(crate) async fn keep_alive(&self, id: i64) -> Answer<LeaseTime> {
        let ask = LeaseId { id };
        self.ask_in_stream("/etcdserverpb.Lease/LeaseKeepAlive", ask)
            .await
    }

    pub(crate) async fn time_left(&self, id: i64) -> Answer<LeaseTime> {
        let ask = LeaseId { id };
        self.ask("/etcdserverpb.Lease/LeaseTimeToLive", ask).await
    }

    pub(crate) async fn status(&self) -> Answer<StatusResponse> {
        let ask = StatusRequest {};
        self.ask("/etcdserverpb.Maintenance/Status", ask).await
    }
}
