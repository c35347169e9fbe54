//! scratch
#[tokio::test(flavor = "multi_thread")]
async fn serve() {
    let server = baton::sim::apiserver::ApiServer::start(baton::sim::apiserver::Options::default()).await.unwrap();
    std::fs::write("/work/t/kc/config", server.kubeconfig("admin")).unwrap();
    std::fs::write("/work/t/kc/plain", server.plain_kubeconfig("admin")).unwrap();
    std::fs::write("/work/t/kc/node", server.kubeconfig("system:node:n1")).unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1500)).await;
}
